"""Energy of the nodes of a campaign, idle or not, on its way to `energy.json` of the run directory.

An agent measures from its start on. What its node has used comes to the driver with every result,
and with the signs of life of a node that has nothing to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from hydragnn_flow.energy_counters import NodeMeter, Reading
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import read_json

ENERGY_FILE = "energy.json"
_logger = logging.getLogger(__name__)
_meters: list[NodeMeter] = []


def begin_to_measure() -> None:
    """Measure what this node uses from now on; for its agent."""
    # A vendor's package may take seconds to start, and nobody waits for it.
    threading.Thread(target=lambda: _meters.append(NodeMeter()), daemon=True).start()


def reading() -> Reading | None:
    """What this node has used since its agent began; None where nothing counts it."""
    return _meters[0].read() if _meters else None


@dataclass(frozen=True)
class NodeEnergy:
    """Energy of the nodes of a campaign, each from the start of its agent to its last sign of life.

    All drivers of the campaign are in it.
    """

    joules: float = 0.0
    node_seconds: float = 0.0
    """Time of all nodes together that was counted [s]."""
    agents: int = 0
    """Agents that have counted."""
    counters: tuple[str, ...] = ()
    """What has counted: `pm_counters`, `NVML + RAPL`."""

    def __add__(self, readings: Mapping[str, Reading]) -> NodeEnergy:
        of_these = {reading.counters for reading in readings.values()}
        return NodeEnergy(
            self.joules + sum(reading.joules for reading in readings.values()),
            self.node_seconds + sum(reading.seconds for reading in readings.values()),
            self.agents + len(readings),
            tuple(sorted({*self.counters, *of_these})),
        )


def read_node_energy(run_directory: Path) -> NodeEnergy | None:
    """What the nodes of a run have used so far; None where nothing counted it."""
    path = run_directory / ENERGY_FILE
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path), NodeEnergy)
    except ValueError as error:
        _logger.warning("%s: is ignored, it cannot be read (%s)", path, error)
        return None


class EnergyFile:
    """Keeps the file up to date.

    Parameters
    ----------
    run_directory
        Directory of the campaign.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ENERGY_FILE
        self._before = read_node_energy(run_directory) or NodeEnergy()
        self._readings: dict[str, Reading] = {}

    def record(self, readings: Iterable[tuple[str, Reading]]) -> None:
        """Write what agents have read, the last of each, beside that of agents that have ended.

        Parameters
        ----------
        readings
            Each with the identifier of its agent, which no later one has; in any order.
        """
        before = dict(self._readings)
        for agent, one in readings:
            known = self._readings.get(agent)
            if known is None or one.seconds > known.seconds:
                self._readings[agent] = one
        if before == self._readings:
            return
        try:
            write_json(self._path, asdict(self._before + self._readings))
        except OSError as error:
            _logger.info("%s: cannot be written (%s)", self._path, error.strerror)
