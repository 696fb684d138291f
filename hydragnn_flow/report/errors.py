"""Test errors of an ensemble beside those of its members, row by row, as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydragnn_flow.ensemble.summary import ENSEMBLE
from hydragnn_flow.report.text import SPLITS, number, percent, signed

Estimate = Mapping[str, float | None]


@dataclass(frozen=True)
class ErrorRow:
    """A model, or the ensemble against one."""

    model: str
    weight: str
    errors: list[str]
    """Mean absolute error and its interval, for each target."""
    best: list[bool]
    """Whether no other row has a smaller one."""


def target_labels(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and unit of each target whose errors are known; sums over atoms are per atom."""
    return [(name, target["unit"]) for name, target in summary["errors"].items()]


def error_rows(summary: Mapping[str, Any]) -> list[ErrorRow]:
    """The ensemble, then its members, then how the ensemble compares with the best single one.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    targets = list(summary["errors"].values())
    members = {str(member["member"]): member for member in summary["members"]}
    rows = []
    for key in next((target["mae"] for target in targets), ()):
        found = [target["mae"][key] for target in targets]
        least = [min(of["value"] for of in target["mae"].values()) for target in targets]
        member = members.get(key)
        rows.append(
            ErrorRow(
                model_name(summary, key),
                "" if member is None else number(member["weight"]),
                [with_interval(estimate) for estimate in found],
                [of["value"] == best for of, best in zip(found, least, strict=True)],
            )
        )
    single = best_single(summary)
    against = [changed(target["change"][single]) for target in targets]
    # Percent stand in the first column, so that errors and changes need no more than 23 characters.
    return [
        *rows,
        ErrorRow(f"against {short_name(single)}, %", "", against, [False] * len(targets)),
    ]


def data_set_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """The ensemble's errors on each data set, how many of its intervals hold, and the means.

    Empty where there is but one data set.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    found: Mapping[str, Any] = summary.get("data_sets") or {}
    labels = [name for name, _ in target_labels(summary)]
    rows = []
    for name, errors in found.items():
        structures = max(of["structures"] for of in errors.values())
        told = [name, f"{structures:,}"]
        for label in labels:
            if label in errors:
                told += [with_interval(errors[label]["mae"][ENSEMBLE])]
                told += [percent(errors[label]["coverage"])]
            else:
                told += ["", ""]
        rows.append(told)
    if rows:
        means = ["mean of the data sets", ""]
        for label in labels:
            known = [errors[label] for errors in found.values() if label in errors]
            mae = [of["mae"][ENSEMBLE]["value"] for of in known]
            means += [number(sum(mae) / len(mae)) if mae else "", ""]
        rows.append(means)
    return rows


def explained(summary: Mapping[str, Any]) -> list[str]:
    """Sentences below the rows: what the last one is, and where the ensemble loses.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    single = short_name(best_single(summary))
    first = f"against {single}: change of the error from it, the best single model by validation"
    return [f"{first} data, to the ensemble", *losses(summary)]


def losses(summary: Mapping[str, Any]) -> list[str]:
    """A sentence for each target on which a member errs less than the ensemble, with the figures.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    sentences = []
    for name, target in summary["errors"].items():
        errors = {key: of["value"] for key, of in target["mae"].items()}
        key = min(errors, key=errors.__getitem__)
        if key == ENSEMBLE or errors[key] == errors[ENSEMBLE]:
            continue
        more = target["change"][key]
        by = f", {changed(more)} %" if more["value"] is not None else ""
        sentences.append(
            f"{name}: the ensemble errs more than {model_name(summary, key)}, "
            f"{number(errors[ENSEMBLE])} against {number(errors[key])} {target['unit']}{by}"
        )
    return sentences


def made_of(summary: Mapping[str, Any]) -> list[str]:
    """How members are combined, why, and the structures that decided it, in sentences.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    sentences = []
    if "aggregation" in summary:
        ways = {
            "weighted": "the weighted mean",
            "uniform": "the plain mean",
            "median": "the median",
        }
        sentences.append(f"The ensemble is {ways[summary['aggregation']]} of its members.")
    if len(scores := summary.get("aggregation_scores") or {}) > 1:
        told = ", ".join(f"{way} {number(score)}" for way, score in scores.items())
        sentences.append(f"Ways to combine them, by the criterion on structures left out: {told}.")
    if fitted := summary.get("calibrated_on"):
        split = SPLITS.get(fitted["split"], fitted["split"])
        sentences.append(
            f"Weights and error bars are fitted on the {fitted['structures']:,} structures of the "
            f"{split} split."
        )
    return sentences


def best_single(summary: Mapping[str, Any]) -> str:
    """Key of the model that validation data call the best single one."""
    return str(summary["best_member"])


def model_name(summary: Mapping[str, Any], key: str) -> str:
    """Name of a model of `errors`."""
    if key == ENSEMBLE:
        return f"ensemble of {len(summary['members'])}"
    trials = [of["trial"] for of in summary["members"] if str(of["member"]) == key]
    return f"{short_name(key)}, trial {trials[0]}" if trials else key


def short_name(key: str) -> str:
    """Name of a model of `errors`, without its trial."""
    return f"member {key}" if key.isdigit() else key


def with_interval(estimate: Estimate) -> str:
    """An error and its interval; the error alone if there is none."""
    value = estimate["value"]
    return "" if value is None else number(value) + ends(estimate["lo"], estimate["hi"])


def ends(lo: float | None, hi: float | None) -> str:
    """Ends of an interval in brackets, after a space; empty if there is none."""
    return "" if lo is None or hi is None else f" ({_end(lo)}{_between(lo, hi)}{_end(hi)})"


def changed(estimate: Estimate) -> str:
    """A relative change and its interval in percent."""
    value, lo, hi = estimate["value"], estimate["lo"], estimate["hi"]
    if value is None:
        return ""
    if lo is None or hi is None:
        return signed(100 * value)
    return f"{signed(100 * value)} ({signed(100 * lo)} to {signed(100 * hi)})"


def _end(value: float) -> str:
    return number(value).replace("-", "\N{MINUS SIGN}") if value < 0 else number(value)


def _between(lo: float, hi: float) -> str:
    """A dash, which would be taken for a sign beside one."""
    return " to " if lo < 0 or hi < 0 else "\N{EN DASH}"
