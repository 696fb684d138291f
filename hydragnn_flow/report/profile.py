"""Profile of a trial's steps for the terminal: the parts of a step, and an answer."""

from __future__ import annotations

import pandas as pd
from rich.console import Group, RenderableType

from hydragnn_flow.report.tables import terminal
from hydragnn_flow.training.profiles.profile_result import Parts, TrainingProfile

WORDS = {
    "reading": "waiting for data",
    "computing": "computing",
    "exchanging": "exchanging gradients",
    "waiting": "waiting for other ranks",
}
"""The parts of a step in words."""
_ANSWERS = {
    "reading": "waits for data: keep the store in memory (data.mode), on the nodes' own disks, or "
    "give a step more graphs",
    "computing": "computes: nothing to gain from I/O, or from a faster network",
    "exchanging": "waits for gradients: larger buckets (Training.ddp.bucket_cap_mb) or fewer GCDs",
    "waiting": "waits for other ranks: batches of more equal size (Training.Batching), or nodes "
    "that are equally fast",
}


def shares(parts: Parts) -> dict[str, float]:
    """The parts of a step as fractions of their sum, by name."""
    return {name: getattr(parts, name) / parts.seconds for name in WORDS}


def answer(profile: TrainingProfile) -> str:
    """Sentence about the part that takes most of a step, and what to do about it."""
    name, share = max(shares(profile.parts).items(), key=lambda item: item[1])
    return f"{share:.0%} of the step {_ANSWERS[name]}".replace("%", " %", 1)


def profile_tables(profile: TrainingProfile, nodes: int = 1) -> RenderableType:
    """Table of the parts of a step, and sentences about it.

    Parameters
    ----------
    profile
        Profile of the steps.
    nodes
        Number of nodes that had the GCDs.
    """
    parts = [
        (WORDS[name], 1e3 * getattr(profile.parts, name), f"{share:.0%}")
        for name, share in shares(profile.parts).items()
    ]
    added = f"{100 * (1 + profile.closure):.1f} % of these steps as a whole"
    parts.append(("together", 1e3 * profile.parts.seconds, added))
    where = f"{profile.ranks} x {profile.device}" + (f" on {nodes} nodes" if nodes > 1 else "")
    joules = profile.joules_per_graph
    facts = [
        f"{profile.steps} steps of {profile.graphs:.1f} graphs, {profile.atoms:,.0f} atoms, "
        f"{profile.edges:,.0f} edges over {where}: "
        f"{profile.graphs / profile.seconds:,.4g} graphs/s",
        f"peak memory {profile.peak_memory_gib:.3f} GiB of a process",
        "energy: nothing here counts it" if joules is None else f"energy {joules:.3g} J a graph",
    ]
    shown = pd.DataFrame(parts, columns=["a step's time goes into", "ms", "share"])
    return Group(terminal(shown), *facts, answer(profile))
