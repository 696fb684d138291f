"""A process that trains one trial, as loops of `srun` start them: `python -m execution_race.fresh`.

It reads the segment from standard input and answers with the Unix time at which the first step
would begin.
"""

from __future__ import annotations

import json
import sys

from execution_race.on_node import stop_at_first_step

if __name__ == "__main__":
    print(stop_at_first_step(json.load(sys.stdin))["ended"])
