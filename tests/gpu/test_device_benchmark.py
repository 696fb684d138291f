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
    assert [table["name"] for table in found["tables"]] == ["modes", "processes"]
    assert "Too little was measured" in done.stdout
    assert found["remarks"] == [
        "not measured: ratios to HydraGNN, whose checkout --hydragnn would name"
    ]
    steps = found["details"]["steps"]
    assert [(row["case"]["mpnn_type"], row["case"]["mode"]) for row in steps] == [
        ("SchNet", "multihead"),
        ("GIN", "multihead"),
        ("SchNet", "potential"),
    ]
    for row in steps:
        assert row["kernels"]["launches"] > 50 and row["peak_gib"] > 0
        assert math.isfinite(row["kernels"]["seconds"])
    assert [one["processes"] for one in found["details"]["processes"]] == [1, 2]
