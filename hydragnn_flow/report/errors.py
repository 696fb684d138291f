"""Errors of an ensemble beside those of its members, and its uncertainty, as tables and sentences.

All of it is read from `ensemble/ensemble.json`; the terminal, the page and the model card show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from hydragnn_flow.ensemble.summary import CLASS_MEASURES, ENSEMBLE, failed_sentences
from hydragnn_flow.report.gcd_time import cost_sentence
from hydragnn_flow.report.tables import number, percent, terminal

Summary = Mapping[str, Any]
"""Content of `ensemble/ensemble.json`."""
Estimate = Mapping[str, float | None]
_OF_MEMBERS = ["member", "trial", "choice", "weight", "trial_error", "best_val_error"]
_OF_MEMBERS += ["graphs_per_step", "learning_rate", "seconds", "gcds", "reason"]


_MEANINGS = {
    "structures": "structures with a label",
    "values": "labels; components of a target count one by one",
    "flagged": "structures unlike the training data",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "r2": "coefficient of determination: 1 is perfect, 0 the mean of the labels",
    "crps": "continuous ranked probability score of mean and error bar: small is good",
    "spearman": "rank correlation of errors and error bars: 1 same order, 0 unrelated",
    "coverage": "part of the labels that the intervals hold: good if near their percentage",
    "width": "mean width of the intervals",
    "accuracy": "part of the classes that are right",
    "auc": "area under the ROC curve: 1 is perfect, 0.5 chance",
    "ece": "expected calibration error of probabilities: 0 is perfect",
}
"""Measure, or the first part of its name → meaning in a line."""


def answers(summary: Summary) -> list[str]:
    """Return a sentence for each target: how good its ensemble is, and how sure.

    They are of the test split: the mean absolute error beside the standard deviation of the labels,
    whether it differs from the best single network's, as far as the interval of the change tells,
    and the part of the true values that the intervals hold.
    """
    single, sentences = str(summary["best_member"]), []
    for name, target in summary["errors"].items():
        spread = target["spread"]  # None for classes
        labels = f", whose labels have a standard deviation of {number(spread)}" if spread else ""
        told = [
            f"{name}: mean absolute error {with_interval(target['mae'][ENSEMBLE])} "
            f"{target['unit']}".rstrip()
            + f" on {target['structures']:,} structures{labels}"
        ]
        if (change := target["change"][single])["value"]:  # else it is the only member
            best = f"{short_name(single)}, the best single network in validation"
            told.append(f"the ensemble {_than(change)} {best}: {changed(change)} %")
        # Of many members one errs less by chance: the headline has what is no chance.
        other = target["change"][least := _least(target)]
        if least != single and "more" in _than(other):
            told.append(f"{_than(other)} {short_name(least)}: {changed(other)} %")
        if held := _held(target):
            told.append(f"{held} of {summary['coverage'] * 100:g} % intervals hold")
        sentences.append("; ".join(told))
    return sentences


def _than(change: Estimate) -> str:
    """Say how the ensemble's error compares with a member's, as far as the interval tells."""
    lo, hi = change["lo"], change["hi"]
    if lo is None or hi is None or lo <= 0 <= hi:
        return "does not clearly differ from"
    return "errs less than" if hi < 0 else "errs more than"


def _least(target: Mapping[str, Any]) -> str:
    """Return the key of the member with the smallest error."""
    errors = {key: of["value"] for key, of in target["mae"].items() if key != ENSEMBLE}
    return str(min(errors, key=lambda key: (errors[key] is None, errors[key] or 0.0)))


def doubted(summary: Summary) -> list[str]:
    """Return sentences on suspicious structures of the data: how many, the worst, masked labels."""
    if not (found := summary["suspicious"]):
        return []
    lacking = sum(n for of_split in summary["lacking"].values() for n in of_split.values())
    masked = f"; labels that are missing, or far off and masked: {lacking:,}" if lacking else ""
    what = f"structures{', left out' * found['left_out']}: {found['structures']} of {found['of']}"
    worst = [f"{what}, the worst: {one['where']}: {one['why']}{masked}" for one in found["worst"]]
    return [f"suspicious {one}" for one in (*(f"data: {one}" for one in found["all"]), *worst[:1])]


def errors_frame(summary: Summary) -> pd.DataFrame:
    """Return a table of mean absolute errors with intervals, of the ensemble and each member.

    Further rows are the relative change [%] from the best single member to the ensemble, the
    fraction of values inside the ensemble's intervals, and the mean noise if heads predict it.
    Errors of extensive targets are per atom.
    """
    targets = [*summary["errors"].values()]
    members = {str(member["member"]): member for member in summary["members"]}
    rows = []
    for key in next((target["mae"] for target in targets), ()):
        weight = number(members[key]["weight"]) if key in members else ""
        errors = (with_interval(target["mae"][key]) for target in targets)
        rows.append([model_name(summary, key), weight, *errors])
    single = str(summary["best_member"])
    changes = [changed(target["change"][single]) for target in targets]
    # The unit % is in the first column, so that errors and changes need at most 23 characters.
    rows.append([f"against {short_name(single)}, %", "", *changes])
    held = [_held(target) for target in targets]
    if any(held):
        rows.append([f"{summary['coverage'] * 100:g} % interval holds", "", *held])
    measured = [summary["measures"][target["target"]]["measures"] for target in targets]
    for measure in CLASS_MEASURES:
        if any(measure in of for of in measured):
            values = (with_interval(of[measure]) if measure in of else "" for of in measured)
            rows.append([measure_name(measure), "", *values])
    known = [(of.get("aleatoric_std"), of["unit"]) for of in targets]
    noise = [f"{number(std)} {unit}" if std else "" for std, unit in known]
    if any(noise):
        rows.append(["predicted noise", "", *noise])
    return pd.DataFrame(rows, columns=["", "weight", *_labels(summary)])


def data_sets_frame(summary: Summary) -> pd.DataFrame | None:
    """Return a table of the ensemble's errors and interval coverages, a row for each data set.

    A last row has the mean errors over data sets. The result is None if there is only one data set.
    """
    found: Mapping[str, Any] = summary.get("data_sets") or {}
    if not found:
        return None
    table: dict[str, list[str]] = {"data set": [*found, "mean of the data sets"]}
    counts = [max(of["structures"] for of in errors.values()) for errors in found.values()]
    table["structures"] = [*(f"{count:,}" for count in counts), ""]
    for name, heading in zip(summary["errors"], _labels(summary), strict=True):
        known = [errors.get(name) for errors in found.values()]
        mae = [of["mae"][ENSEMBLE] for of in known if of]
        mean = number(sum(of["value"] for of in mae) / len(mae)) if mae else ""
        table[heading] = [*(with_interval(of["mae"][ENSEMBLE]) if of else "" for of in known), mean]
        table[f"{name}: hold"] = [*(_held(of) if of else "" for of in known), ""]
    return pd.DataFrame(table)


def members_table(summary: Summary) -> pd.DataFrame:
    """Return a table of the members of the ensemble, a row each.

    Its columns are trial, reason for the choice, weight, errors, graphs per step, learning rate,
    training time [s], GCDs as `trained on`, and the reason why training ended early; empty columns
    are left out.
    """
    table = pd.DataFrame(summary["members"], dtype=object)
    table = table.reindex(columns=_OF_MEMBERS, fill_value="").fillna("")
    # Numbers of devices, not of how many.
    table["gcds"] = [", ".join(f"GCD {gcd}" for gcd in gcds) for gcds in table["gcds"]]
    return table.loc[:, (table != "").any()].rename(columns={"gcds": "trained on"})


def measures_frame(targets: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table of measures of errors and error bars, a row for each measure of each target.

    Parameters
    ----------
    targets
        Measures of each target, as `measures` of `ensemble/ensemble.json` has them.

    Returns
    -------
    pandas.DataFrame
        ``target``, ``measure``, ``value``, its ``95 % interval`` from a bootstrap of structures,
        and its ``meaning``.
    """
    rows = []
    for name, target in targets.items():
        about = f"{name} [{target['unit']}]" if target["unit"] else name
        for count in ("structures", "values", "flagged"):
            rows.append([about, count, f"{target.get(count, 0):,}", "", _MEANINGS[count]])
        for measure, estimate in target["measures"].items():
            told = percent if measure.startswith("coverage") else number
            value, lo, hi = ("" if end is None else told(end) for end in estimate.values())
            meaning = _MEANINGS.get(measure.partition("_")[0], "")
            interval = f"{lo} to {hi}" if lo else ""
            rows.append([about, measure_name(measure), value, interval, meaning])
    return pd.DataFrame(rows, columns=["target", "measure", "value", "95 % interval", "meaning"])


def measure_name(measure: str) -> str:
    """Return a readable name of a measure, such as "90 % interval holds" for `coverage_90`."""
    kind, _, rest = measure.partition("_")
    if kind in ("coverage", "width"):
        return f"{rest} % interval {'holds' if kind == 'coverage' else 'width'}"
    return " ".join([kind.upper() if len(kind) < 5 else kind, *rest.split("_")]).strip()


def closing_table(summary: Summary) -> RenderableType:
    """Return tables of test errors and sentences on the cost, shown when a campaign ends."""
    structures = max((target["structures"] for target in summary["errors"].values()), default=0)
    title = f"Mean absolute errors on the test split: {structures:,} structures, 95 % intervals"
    tables = [terminal(errors_frame(summary), title)]
    if (each := data_sets_frame(summary)) is not None:
        tables.append(terminal(each, "The ensemble on each data set, and intervals that hold"))
    told = [*explained(summary), *failed_sentences(summary)]
    told += [f"{one}; see Data in the report" for one in doubted(summary)]
    return Group(*tables, *map(Text, [*told, cost_sentence(summary)]))


def explained(summary: Summary) -> list[str]:
    """Return sentences that explain the table of errors from :func:`errors_frame`.

    The first sentence explains its row `against`. The others name the targets on which a member
    errs less than the ensemble.
    """
    single = short_name(str(summary["best_member"]))
    sentences = [
        f"against {single}: change of the error from it, the best single model by validation data, "
        f"to the ensemble"
    ]
    most = max((target["structures"] for target in summary["errors"].values()), default=0)
    for name, target in summary["errors"].items():
        if target["structures"] < most:
            sentences.append(f"{name}: {target['structures']:,} structures have a label")
        key = _least(target)
        errors = [target["mae"][of]["value"] for of in (ENSEMBLE, key)]
        if errors[0] <= errors[1]:
            continue
        more = target["change"][key]
        by = f", {changed(more)} %" if more["value"] is not None else ""
        sentences.append(
            f"{name}: the ensemble {_than(more)} {model_name(summary, key)}, "
            f"{' against '.join(map(number, errors))} {target['unit']}{by}"
        )
    return sentences


def model_name(summary: Summary, key: str) -> str:
    """Return the readable name of a model with its trial, such as `member 3, trial 17`.

    ``key`` is the key of the model in `errors`: the number of a member, or `ensemble`.
    """
    if key == ENSEMBLE:
        return f"ensemble of {len(summary['members'])}"
    trials = [of["trial"] for of in summary["members"] if str(of["member"]) == key]
    return f"{short_name(key)}, trial {trials[0]}" if trials else key


def short_name(key: str) -> str:
    """Return the readable name of a model without its trial, such as `member 3`.

    ``key`` is that of :func:`model_name`.
    """
    return f"member {key}" if key.isdigit() else key


def with_interval(estimate: Estimate) -> str:
    """Format an error and its interval, as "1.20 (1.10–1.31)"; the error alone without interval."""
    value, lo, hi = estimate["value"], estimate["lo"], estimate["hi"]
    if value is None or lo is None or hi is None:
        return "" if value is None else number(value)
    # A dash would be taken for a sign beside one.
    dash = " to " if lo < 0 or hi < 0 else "\N{EN DASH}"
    ends = (number(of).replace("-", "\N{MINUS SIGN}") if of < 0 else number(of) for of in (lo, hi))
    return f"{number(value)} ({dash.join(ends)})"


def changed(estimate: Estimate) -> str:
    """Format a relative change of an error, with its interval, in percent; empty if unknown."""
    if estimate["value"] is None:
        return ""
    value, *ends = (
        f"{100 * of:+.1f}".replace("-", "\N{MINUS SIGN}")
        for of in (estimate["value"], estimate["lo"], estimate["hi"])
        if of is not None
    )
    return f"{value} ({' to '.join(ends)})" if len(ends) == 2 else value


def _held(target: Mapping[str, Any]) -> str:
    held = target["coverage"]  # None for classes
    return "" if held is None else percent(held)


def _labels(summary: Summary) -> list[str]:
    targets = summary["errors"].items()
    return [f"{name} [{of['unit']}]" if of["unit"] else name for name, of in targets]
