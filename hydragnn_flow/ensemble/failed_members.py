"""Failed members, which other trials replace, as `selection.json` names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import read_json
from hydragnn_flow.errors import InputError

SELECTION = "selection.json"
"""File with the choice of members, in the ensemble's folder."""


@dataclass(frozen=True)
class FailedMember:
    """Member whose training was given up."""

    member: int
    trial: int
    reason: str


def failed_members(folder: Path) -> list[FailedMember]:
    """Return the members that were given up, in that order; none without such a record."""
    try:
        return [FailedMember(**values) for values in read_json(folder / SELECTION)["failed"]]
    except (InputError, KeyError, TypeError):
        return []


def failed_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence on each failed member: what replaces it, or why it stays unfinished.

    Parameters
    ----------
    summary
        Content of the file `ensemble.json`.
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
