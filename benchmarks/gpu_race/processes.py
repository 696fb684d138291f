"""Several processes that train on one device, as trainer processes of a campaign do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from model_race.networks import BATCH, Case

_BENCHMARKS = Path(__file__).resolve().parents[1]
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
    case: Case,
    store: Path,
    device: torch.device,
    numbers: Sequence[int],
    seconds: float,
    say: Callable[[str], None],
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
    say
        Function that says what is being done.

    Raises
    ------
    RuntimeError
        Where a process ends; the message is the end of what it said.
    """
    given = json.dumps([case.mpnn_type, case.mode, str(store), str(device)])
    with ExitStack() as stack:
        processes = []
        for _ in range(max(numbers)):
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_race.processes", given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                cwd=_BENCHMARKS,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            _answer(process)  # it has taken its first steps
        found = []
        for n in numbers:
            say(f"{n} processes of {case.name}")
            begin = time.time() + 0.2
            for process in processes[:n]:
                assert process.stdin is not None
                process.stdin.write(f"{begin} {seconds}\n")
                process.stdin.flush()
            rates = [float(_answer(process)) for process in processes[:n]]
            found.append(Shared(case, n, sum(rates)))
    return found


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(process.stderr.read()[-500:] or "a process ended")
    return line


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
