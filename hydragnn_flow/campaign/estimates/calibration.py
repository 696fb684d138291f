"""Calibration of a site: fits its cost model to networks that were trained there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_flow.campaign.estimates.cost_files import CostFiles
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import CostModel, Taken, Work

# Number of steps in which the start of a segment is negligible.
_MANY = 10_000


@dataclass(frozen=True)
class Calibrated:
    """Time of a training step of a network."""

    kind: str
    """Message-passing type."""
    hidden: int
    before: float
    """Time predicted before the calibration [s]."""
    measured: float
    """Measured time of a step [s]."""
    after: float
    """Time predicted after the calibration [s]."""


def learn(site: Site, networks: Sequence[Mapping[str, Any]]) -> list[Calibrated]:
    """Add the measured costs of networks to the cost file of a site.

    Parameters
    ----------
    site
        Site on which the networks were trained.
    networks
        ``kind``, ``hidden`` and ``taken`` of each network, as returned by
        :func:`~hydragnn_flow.execution.site_check.calibration.calibrate`.
    """
    files = CostFiles(site)
    model = CostModel(site.node.gcd, len(site.node.gcds))
    for earlier in files.read():
        model.recall(earlier)
    trained = [(one["kind"], one["hidden"], _taken(one["taken"])) for one in networks]
    before = [_step(model, kind, taken) for kind, _, taken in trained]
    for kind, _, taken in trained:
        model.observe(kind, taken)
    files.write(model.experience())
    return [
        Calibrated(kind, hidden, expected, taken.step_seconds, _step(model, kind, taken))
        for (kind, hidden, taken), expected in zip(trained, before, strict=True)
    ]


def _taken(values: Mapping[str, Any]) -> Taken:
    return Taken(**{**values, "work": Work(*values["work"])})


def _step(model: CostModel, kind: str, taken: Taken) -> float:
    return model.estimate(kind, taken.work, _MANY).seconds / _MANY
