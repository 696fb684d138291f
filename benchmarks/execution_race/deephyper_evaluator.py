"""DeepHyper's evaluator as HydraGNN's examples use it, in a process of its own.

    PYTHON-WITH-DEEPHYPER -m execution_race.deephyper_evaluator PYTHON-THAT-TRAINS

To each line, a segment as JSON, it answers once the segment's first step would begin, with the CPU
time of all processes since the line before. `run` starts a process for each trial, as
`gfm_deephyper_multi.py` does by `srun`; here without Slurm. Nothing of ours is imported, since
DeepHyper's requirements are not ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psutil
from deephyper.evaluator import ProcessPoolEvaluator, queued


def run(job: Any, dequed: Any = None) -> dict[str, Any]:
    """Train one trial in a process of its own; the process reads its parameters."""
    command = [job.parameters["python"], "-m", "execution_race.fresh"]
    subprocess.check_output(command, input=job.parameters["segment"], encoding="utf-8")
    return {"objective": 0.0}


def serve(python: str) -> None:
    """Answer until the input ends."""
    evaluator = queued(ProcessPoolEvaluator)(
        run, num_workers=1, queue=["here"], queue_pop_per_task=1
    )
    before = _cpu_seconds()
    for line in sys.stdin:
        evaluator.submit([{"python": python, "segment": line}])
        evaluator.gather("ALL")
        now = _cpu_seconds()
        print(json.dumps({"cpu": now - before}), flush=True)
        before = now
    evaluator.close()


def _cpu_seconds() -> float:
    """CPU time of this process and of all that it has started, including those that have ended."""
    this = psutil.Process()
    times = [process.cpu_times() for process in [this, *this.children(recursive=True)]]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


if __name__ == "__main__":
    serve(sys.argv[1])
