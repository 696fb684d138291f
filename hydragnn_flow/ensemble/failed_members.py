"""Failed members: those whose place others take, as `selection.json` names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import read_json
from hydragnn_flow.errors import InputError

SELECTION = "selection.json"
"""The choice of members, in the ensemble's folder."""


@dataclass(frozen=True)
class FailedMember:
    """A member that was given up."""

    member: int
    trial: int
    reason: str


def failed_members(folder: Path) -> list[FailedMember]:
    """The members of an ensemble that were given up, in that order; none if nothing says so."""
    try:
        return [FailedMember(**values) for values in read_json(folder / SELECTION)["failed"]]
    except (InputError, KeyError, TypeError):
        return []


def failed_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on failed members: what takes their place, or what they are without a successor.

    Parameters
    ----------
    summary
        Content of `ensemble.json`.
    """
    members: Sequence[Mapping[str, Any]] = summary["members"]
    kept = {member["member"] for member in members}
    return [
        f"member {member['member']} (trial {member['trial']}) was not trained to its end: "
        f"{member['reason']}"
        for member in members
        if member.get("reason")
    ] + [
        f"member {failed['member']} (trial {failed['trial']}) failed, and another trial took its "
        f"place: {failed['reason']}"
        for failed in summary.get("failed", ())
        if failed["member"] not in kept
    ]
