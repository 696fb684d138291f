"""What a device would suffer from, found without one; see :mod:`pretended`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device_cases import NETWORKS, OPTIMISERS, write_labelled
from torch.utils import backend_registration

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason=f"NOT CHECKED: torch {torch.__version__} knows no devices written in Python",
    ),
]
HERE = Path(__file__).parent
TRIALS = [
    *NETWORKS,
    *(f"{optimiser} restored" for optimiser in OPTIMISERS),
    *(f"{optimiser} replayed" for optimiser in ("AdamW", "Muon", "SGD")),
    "cpu to pretended:0",
    "pretended:0 to cpu",
]


@pytest.fixture(scope="module")
def faults(alloy_store, tmp_path_factory):
    """What went wrong in each trial."""
    folder = tmp_path_factory.mktemp("pretended")
    store = write_labelled(folder / "store.gs", alloy_store)
    places = HERE.parent, HERE.parent / "training"
    paths = [*map(str, places), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, HERE / "pretended_steps.py", store.path, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(TRIALS)
    return found


@pytest.mark.parametrize("trial", TRIALS)
def test_a_device_is_not_waited_for_and_computes_the_same(faults, trial):
    assert not faults[trial], faults[trial]
