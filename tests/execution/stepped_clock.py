"""An interchange on a host whose wall clock is set while it runs: `stepped_clock.py PID FILE`."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

_ahead, _real = Path(sys.argv[2]), time.time
time.time = lambda: _real() + float(_ahead.read_text(encoding="utf-8"))
runpy.run_module("hydragnn_flow.execution.pools.interchange", run_name="__main__", alter_sys=True)
