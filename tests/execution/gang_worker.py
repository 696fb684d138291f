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


def run(spec: dict[str, Any], ranks: list[dict[str, Any]], interface: str | None) -> None:
    group = [Rank(read_segment(spec), **rank) for rank in ranks]
    results = run_ranks(replace(NODE, interface=interface), group)
    print(json.dumps([result.to_dict() for result in results]), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    if "call off" in message:
        call_off(*message["call off"])
        continue
    rank_module.SECONDS_TO_MEET = message["ranks"][0].pop("seconds_to_meet", 300.0)
    threading.Thread(target=run, kwargs=message).start()
