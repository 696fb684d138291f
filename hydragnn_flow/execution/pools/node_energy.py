"""Energy of the nodes of a campaign, idle or not, in `energy.json` of the run directory."""

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
    """Start to measure the energy of this node, in a thread of this process (its agent)."""
    # A vendor's package may take seconds to start, so it starts in a thread.
    threading.Thread(target=lambda: _meters.append(NodeMeter()), daemon=True).start()


def reading() -> Reading | None:
    """Return the energy that this node used since its agent started [J]; None if not counted."""
    return _meters[0].read() if _meters else None


@dataclass(frozen=True)
class NodeEnergy:
    """Energy of the nodes of a campaign, each from the start of its agent to its last heartbeat.

    It is a sum over all drivers of the campaign.
    """

    joules: float = 0.0
    node_seconds: float = 0.0
    """Time in which energy was counted, summed over nodes [s]."""
    agents: int = 0
    """Number of agents that have counted energy."""
    counters: tuple[str, ...] = ()
    """Names of the counters, such as `pm_counters` or `NVML + RAPL`."""

    def __add__(self, readings: Mapping[str, Reading]) -> NodeEnergy:
        of_these = {reading.counters for reading in readings.values()}
        return NodeEnergy(
            self.joules + sum(reading.joules for reading in readings.values()),
            self.node_seconds + sum(reading.seconds for reading in readings.values()),
            self.agents + len(readings),
            tuple(sorted({*self.counters, *of_these})),
        )


def read_node_energy(run_directory: Path) -> NodeEnergy | None:
    """Read the energy of a run's nodes so far from `energy.json`; None if it was not counted."""
    path = run_directory / ENERGY_FILE
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path), NodeEnergy)
    except ValueError as error:
        _logger.warning("%s: is ignored, it cannot be read (%s)", path, error)
        return None


class EnergyFile:
    """Writer of `energy.json`, the energy of a campaign's nodes.

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
        """Add up the agents' last energy readings and earlier drivers' energy, and write the file.

        Parameters
        ----------
        readings
            Pairs of an agent's unique identifier and its reading, in any order.
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
