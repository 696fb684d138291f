"""A source of the user's own, from outside the package: that of its how-to."""

import os
import subprocess
import sys

import pytest
from campaign_cases import CONFIG, write_config
from driver_cases import TWO_CORES
from page_cases import blocks
from segment_cases import NETWORK

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config.base import validate
from hydragnn_flow.data import prepare_store
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.testing.sources import SourceSuite

SECTION = {"format": "toy_files:ToySource", "train": "*.toy", "targets": {"energy": "eV"}}

HALF = """
from hydragnn_flow.data.sources.structures import StructuresSection


class Half(StructuresSection):
    ""\"Says what it reads, and not who.""\"


class Failing(StructuresSection):
    def open(self, folder, seed):
        return {}["reader"]
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The folder of the module, which is to be imported from there."""
    folder = tmp_path_factory.mktemp("own")
    [block] = [block for block in blocks("python") if block.text.startswith("# toy_files.py")]
    (folder / "toy_files.py").write_text(block.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("toy_files", None)


def write_files(folder, n):
    for i in range(n):
        lines = [f"{0.1 * i:.2f}", "Cu 0 0 0", f"Ni 0 0 {2 + 0.01 * i:.2f}"]
        (folder / f"{i}.toy").write_text("\n".join(lines[: 3 if i else 2]) + "\n")
    return SECTION


@pytest.mark.usefixtures("module")
class TestToy(SourceSuite):
    @pytest.fixture
    def section(self, tmp_path):
        return write_files(tmp_path, 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toy_fils:ToySource", "source.format: there is no module 'toy_fils'; install it"),
        ("toy_files:ToySorce", "source.format: toy_files has no 'ToySorce'; correct the name"),
        ("toy_files:ToyFiles", "source.format: toy_files:ToyFiles is not derived from"),
        ("half_files:Half", "source.format: half_files:Half has no method open; write it"),
        ("toy_files", "source.format: must be one of 'emt_alloys', .*, or module:Class"),
        ("broken_files:Any", "source.format: .*broken_files.* cannot be imported: out of order"),
    ],
)
def test_wrong_names_are_told(module, name, said):
    (module / "broken_files.py").write_text("raise RuntimeError('out of order')\n")
    (module / "half_files.py").write_text(HALF)
    with pytest.raises(InputError, match=f"run.yaml: {said}") as error:
        validate(DataConfig, {"source": SECTION | {"format": name}}, "run.yaml")
    assert "\n" not in str(error.value)


def test_an_error_of_its_method_open_is_told(module, tmp_path):
    (module / "half_files.py").write_text(HALF)
    source = SECTION | {"format": "half_files:Failing"}
    config = DataConfig.model_validate({"source": source, "split": {"test": 0.1}})
    said = r"data.source: half_files:Failing cannot be opened: KeyError\('reader'\); correct its"
    with pytest.raises(InputError, match=said) as error:
        prepare_store(config, 3.0, None, 0, tmp_path / "store.gs")
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.slow
def test_a_campaign_is_run_on_it(module, tmp_path):
    """The workers import the module too."""
    (tmp_path / "data").mkdir()
    write_files(tmp_path / "data", 60)
    data = {"source": SECTION, "split": {"val": 0.2, "test": 0.2}}
    head = {"num_sharedlayers": 1, "dim_sharedlayers": 8, "num_headlayers": 1}
    architecture = {"mpnn_type": "SchNet", "hidden_dim": 8, "num_conv_layers": 2, "radius": 4.0}
    architecture["output_heads"] = {"graph": head | {"dim_headlayers": [8]}}
    outputs = {"output_names": ["energy"], "type": ["graph"]}
    network = {**NETWORK, "Architecture": architecture, "Variables_of_interest": outputs}
    search = {**CONFIG["search"], "trials": 2}
    config = write_config(tmp_path, data=data, network=network, search=search)
    path = os.pathsep.join([str(module), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    words = ["run", config, "--data", tmp_path / "data", "--run-dir", tmp_path / "run"]
    with bound_to(TWO_CORES):
        done = subprocess.run(
            [sys.executable, "-m", "hydragnn_flow", *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "predictions" / "test.parquet").is_file()
