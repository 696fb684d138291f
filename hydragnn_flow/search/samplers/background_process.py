"""A process that proposes trials: `python -m …background_process DRIVER_PID`.

Requests and answers are single lines of JSON through pipes; it ends when the driver does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.samplers.proposer import Proposer

_SECONDS_BETWEEN_LOOKS = 2.0


def _serve() -> None:
    """Read the space, then answer requests until the driver closes the pipe."""
    # A Ctrl-C, and the loss of a terminal, are for the driver, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    os.nice(10)  # the driver and what it starts on its own node come first
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints to standard output must not be taken for an answer
    space = json.loads(sys.stdin.readline())
    proposer = Proposer({name: Parameter.model_validate(domain) for name, domain in space.items()})
    for line in sys.stdin:
        start = time.monotonic()
        values = proposer.propose(**json.loads(line))
        answer = {"values": values, "seconds": time.monotonic() - start}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _end_with(driver: int) -> None:
    """End when the driver does, even if a process that it forked holds the pipe open."""
    while os.getppid() == driver:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(0)


if __name__ == "__main__":
    _serve()
