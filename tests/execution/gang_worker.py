"""A worker that runs jobs as Parsl would have it do; a script. One line of JSON in, one out."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from hydragnn_flow.execution import Node, RankGroup, run_rank_groups
from hydragnn_flow.execution.workers import local_ranks
from hydragnn_flow.placement import Gcd
from hydragnn_flow.segment import SegmentSpec

NODE = Node(
    gcds=("0", "1"),
    gcd=Gcd(8, 1e10, 1e10, 1e-5, 0.5, 4),
    cores_per_gcd=1,
    device="cpu",
)

for line in sys.stdin:
    spec, group, interface = json.loads(line)
    group["gcds"] = tuple(group["gcds"])
    local_ranks.SECONDS_TO_MEET = group.pop("seconds_to_meet", 300.0)
    (result,) = run_rank_groups(
        replace(NODE, interface=interface), [RankGroup(SegmentSpec.from_dict(spec), **group)]
    )
    print(json.dumps(result.to_dict()), flush=True)
