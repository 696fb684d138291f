"""A worker that runs jobs as Parsl would have it do; a script. One line of JSON in, one out."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from hydragnn_flow.execution import Job, Node, run_jobs
from hydragnn_flow.placement import Gcd
from hydragnn_flow.segment import SegmentSpec

NODE = Node(
    gcds=("0", "1"),
    gcd=Gcd(8, 1e10, 1e10, 1e-5, 0.5, 4),
    cores_per_gcd=1,
    device="cpu",
)

for line in sys.stdin:
    spec, job, interface = json.loads(line)
    job["gcds"] = tuple(job["gcds"])
    (result,) = run_jobs(
        replace(NODE, interface=interface), [Job(SegmentSpec.from_dict(spec), **job)]
    )
    print(json.dumps(result.to_dict()), flush=True)
