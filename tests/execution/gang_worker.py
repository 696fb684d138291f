"""A node that runs ranks as its agent does; a script. Lines of JSON come in, results go out."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from typing import Any

from trainer_cases import NODE

from hydragnn_flow.execution import Rank, run_ranks
from hydragnn_flow.execution.workers import rank as rank_module
from hydragnn_flow.execution.workers.worker import call_off
from hydragnn_flow.segment import read_segment


def run(spec: dict[str, Any], rank: dict[str, Any], interface: str | None) -> None:
    (result,) = run_ranks(replace(NODE, interface=interface), [Rank(read_segment(spec), **rank)])
    print(json.dumps(result.to_dict()), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    if "call off" in message:
        call_off(*message["call off"])
        continue
    rank_module.SECONDS_TO_MEET = message["rank"].pop("seconds_to_meet", 300.0)
    threading.Thread(target=run, kwargs=message).start()
