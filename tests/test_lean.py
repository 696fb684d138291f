"""Leaner imports of torch_geometric: what is left out comes when it is used."""

import subprocess
import sys

WORDS = """
import inspect, sys
from hydragnn_flow.lean import import_lean
import_lean()
import torch_geometric
import torch
left_out = ("torch._dynamo", "torch_geometric.datasets.qm9", "pandas")
assert not [name for name in left_out if name in sys.modules]
inspect.getmodule(inspect.currentframe())  # looks at all modules
assert "torch_geometric.datasets.qm9" not in sys.modules
compiled = torch.compile(torch.nn.Linear(1, 1))
assert torch_geometric.is_torch_instance(compiled, torch.nn.Linear)
assert not torch_geometric.is_torch_instance(compiled, torch.nn.Conv2d)
assert torch_geometric.typing.WITH_PT20
from concurrent.futures import ThreadPoolExecutor
some = ["QM9", "MD17", "TUDataset", "ZINC"]
with ThreadPoolExecutor(4) as pool:
    found = pool.map(lambda name: getattr(torch_geometric.datasets, name), some)
    assert all(issubclass(each, torch_geometric.data.Dataset) for each in found)
from torch_geometric.datasets import Planetoid
try:
    torch_geometric.datasets.Missing
except AttributeError:
    print("whole")
"""


def test_torch_geometric_is_whole_without_what_its_root_imports():
    done = subprocess.run([sys.executable, "-c", WORDS], capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr


def test_a_trainer_has_dynamo_from_its_start_and_no_data_sets():
    told = (
        "from hydragnn_flow.lean import import_lean; import_lean(dynamo_too=False)\n"
        "import sys, hydragnn_flow.execution.workers.answers\n"
        "print([n in sys.modules for n in ('torch._dynamo', 'torch_geometric.datasets.qm9')])"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert done.stdout == "[True, False]\n", done.stderr
