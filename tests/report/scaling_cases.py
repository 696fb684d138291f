"""Scaling studies made up for the report."""

from __future__ import annotations

from collections.abc import Mapping

from hydragnn_flow.report.scaling import Point, Study
from hydragnn_flow.training.profile_result import Parts, TrainingProfile

BATCH = 16.0


def profile(
    gcds: int = 2,
    batches: int = 1,
    seconds: float = 0.1,
    parts: Parts | None = None,
) -> TrainingProfile:
    """A profile whose parts take 98 % of its step, unless they are given."""
    parts = parts or Parts(*(share * 0.98 * seconds for share in (0.1, 0.5, 0.3, 0.1)))
    graphs = batches * BATCH
    return TrainingProfile(
        device="cpu",
        ranks=gcds,
        graphs=graphs,
        atoms=30 * graphs,
        edges=900 * graphs,
        steps=100,
        seconds=seconds,
        peak_memory_gib=0.5,
        joules_per_graph=None,
        parts=parts,
    )


def study(strong: Mapping[int, float], weak: Mapping[int, float], gcds_of_a_node: int = 2) -> Study:
    """A study with efficiencies at numbers of GCDs, beside one GCD that takes 0.1 s for a batch."""
    points = [Point(1, 1, 1, profile(1, parts=Parts(0.01, 0.088)))]
    for efficient, is_weak in ((strong, False), (weak, True)):
        for gcds, efficiency in efficient.items():
            batches = gcds if is_weak else 1
            seconds = 0.1 * batches / (gcds * efficiency)
            nodes = -(-gcds // gcds_of_a_node)
            points.append(Point(gcds, batches, nodes, profile(gcds, batches, seconds)))
    return Study("made", None, "cluster", "cpu", 5.0, {"Training": {}}, tuple(points))
