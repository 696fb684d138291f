"""Parsl's interchange, ending with the driver that started it.

Parsl's own lives on when its driver is killed, and keeps the worker pools alive with it: processes
on a shared login node and idle nodes, until somebody notices. Run with the driver as its parent,
this one ends within seconds of it; the pools then miss its heartbeat and end too.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time

SECONDS_BETWEEN_LOOKS = 1.0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


if __name__ == "__main__":
    # Ctrl-C in a terminal is for the driver, which ends this process when it has given all back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__")
