"""A process that proposes trials: `python -m …background_process DRIVER_PID`.

Requests and answers are single lines of JSON through pipes; it ends when the driver does.
"""

from __future__ import annotations

import json
import os
import sys
import time

from hydragnn_flow.config import Parameter
from hydragnn_flow.processes import end_with_parent, keep_stdout
from hydragnn_flow.search.samplers.proposer import Proposer


def _serve() -> None:
    """Read the space, then answer requests until the driver closes the pipe."""
    end_with_parent(int(sys.argv[1]))
    os.nice(10)  # the driver and what it starts on its own node come first
    send = keep_stdout()
    space = json.loads(sys.stdin.readline())
    proposer = Proposer({name: Parameter.model_validate(domain) for name, domain in space.items()})
    for line in sys.stdin:
        start = time.monotonic()
        values = proposer.propose(**json.loads(line))
        send({"values": values, "seconds": time.monotonic() - start})


if __name__ == "__main__":
    _serve()
