"""A process that trains one trial, as loops of `srun` start them: `python -m execution_race.fresh`.

It reads the segment from standard input and answers with the Unix time at which the first step
would begin.
"""

from __future__ import annotations

import json
import sys

from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.runner import run_segment

if __name__ == "__main__":
    result = run_segment(SegmentSpec.from_dict(json.load(sys.stdin)), should_stop=lambda: True)
    assert result.status == "interrupted", result.reason
    print(result.ended)
