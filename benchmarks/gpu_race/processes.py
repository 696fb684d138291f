"""Several processes that train on one device, as trainer processes of a campaign do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import torch
from model_race.networks import BATCH, Case
from results import say
from turns import Spoken

# CPU time after which losses are read [s], for which a process waits for the device.
_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Shared:
    """Speed of processes side by side."""

    case: Case
    processes: int
    steps_per_second: float
    """Speed of all processes together."""


def measure(
    case: Case, store: Path, device: torch.device, numbers: Sequence[int], seconds: float
) -> list[Shared]:
    """Let the first processes train at the same time, and measure the wall time.

    Parameters
    ----------
    case, store
        Network and graphs of each process.
    device
        Device that they share; on a CPU each has one thread.
    numbers
        Numbers of processes at a time.
    seconds
        Length of each measurement [s].

    Raises
    ------
    RuntimeError
        Where a process ends; the message is the end of what it said.
    """
    given = json.dumps([case.mpnn_type, case.mode, str(store), str(device)])
    with ExitStack() as stack:
        processes = []
        for _ in range(max(numbers)):
            spoken = Spoken(sys.executable, "-m", "gpu_race.processes", given, errors=PIPE)
            stack.callback(spoken.process.wait)
            stack.callback(spoken.process.kill)
            processes.append(spoken)
        for process in processes:
            process.answer()  # it has taken its first steps
        found = []
        for n in numbers:
            say(f"{n} processes of {case.name}")
            begin = time.time() + 0.2
            for process in processes[:n]:
                process.tell(f"{begin} {seconds}")
            rates = [float(process.answer()) for process in processes[:n]]
            found.append(Shared(case, n, sum(rates)))
    return found


def _serve(mpnn_type: str, mode: str, store: str, device: str) -> None:
    """Train when asked to; the answer is steps per second."""
    from model_race.sides import Ours

    from gpu_race.steps import now

    torch.set_num_threads(1)
    case = Case(mpnn_type, mode)  # type: ignore[arg-type]
    side = Ours(Path(store), case, BATCH, torch.device(device))
    for _ in range(3):
        side.train(0)
    print("ready", flush=True)
    for line in sys.stdin:
        begin, seconds = map(float, line.split())
        time.sleep(max(0.0, begin - time.time()))
        graphs, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            graphs += side.train(_BETWEEN_LOOKS)
        now(torch.device(device))
        print(graphs / BATCH / (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
