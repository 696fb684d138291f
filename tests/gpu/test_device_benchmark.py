"""`benchmarks/gpu.py` runs and prints its tables; how fast is not for tests to say."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def test_every_table_is_printed(tmp_path, device):
    file = tmp_path / "gpu.json"
    chosen = ["--type", "SchNet", "--type", "GIN", "--quick", "--json", file]
    done = subprocess.run(
        [sys.executable, PROGRAM, "--device", device.type, *chosen],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    names = ["modes", "steps", "estimates", "constants", "processes", "pieces", "fused"]
    assert [table["name"] for table in found["tables"]] == names
    assert "Too little was measured" in done.stdout
    assert found["remarks"] == [
        "not measured: ratios to HydraGNN, whose checkout --hydragnn would name"
    ]
    steps = found["details"]["steps"]
    assert [(row["case"]["mpnn_type"], row["case"]["mode"]) for row in steps] == [
        ("SchNet", "multihead"),
        ("GIN", "multihead"),
        ("SchNet", "potential"),
        ("SchNet", "attention"),
    ]
    for row in steps:
        assert row["kernels"]["launches"] > 50 and row["peak_gib"] > 0
        assert row["kernels"]["costliest"] and math.isfinite(row["kernels"]["seconds"])
    assert [one["processes"] for one in found["details"]["processes"]] == [1, 2]
    pieces = found["details"]["pieces"]
    assert len({one["piece"] for one in pieces}) == 9
    assert all(one["worst"] < 1e-3 for one in pieces), pieces
    (together,) = found["details"]["fused"]
    assert together["loss"] < 1e-4 and together["weight"] < 1e-4, together
