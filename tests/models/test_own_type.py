"""A message-passing type from outside the package: the one of its how-to."""

import os
import re
import subprocess
import sys

import pytest
from campaign_cases import CONFIG, write_config
from driver_cases import TWO_CORES
from page_cases import REPOSITORY
from segment_cases import NETWORK

from hydragnn_flow.config import load_network, resolve_config
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.models import build_model
from hydragnn_flow.testing.message_passing import PotentialSuite, PropertySuite
from hydragnn_flow.testing.networks import manifest, network

NAME = "my_package.my_module:MyType"
SLOPE = "Architecture.mpnn_options.slope"
EXAMPLE = re.search(
    r"```python\n(.*?)```",
    (REPOSITORY / "docs" / "how-to" / "own-type.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    """A folder with the user's package, where Python finds it."""
    assert EXAMPLE is not None
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "my_module.py").write_text(EXAMPLE[1])
    (folder / "my_package" / "broken.py").write_text("1 / 0\n")
    (folder / "my_package" / "others.py").write_text(OTHERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


OTHERS = """
from torch import nn
from hydragnn_flow.models.mpnn import MessagePassing, Properties

class NotAType: pass
class Likeness: properties = Properties(lengths="never")
class Empty(MessagePassing): properties = Properties(lengths="never")
class Listed(Empty):
    def __init__(self, *given):
        super().__init__(*given)
        self.layers = []
class Failing(Empty):
    def __init__(self, *given):
        raise KeyError("slope")
class Unready(Empty):
    def __init__(self, *given):
        self.layers = nn.ModuleList()
class Huge(Empty):
    def __init__(self, *arguments):
        raise RuntimeError("can't allocate memory")
class OnABrokenDisk(Empty):
    def __init__(self, *arguments):
        raise OSError(5, "Input/output error")
class OtherArguments(Empty):
    def __init__(self, width): ...
class Undescribed(MessagePassing): pass
class Blind(MessagePassing): properties = Properties(lengths="never")
class Misspelt(MessagePassing): properties = Properties(lengths="never", keys=("num_gausians",))
"""


class TestMyType(PropertySuite):
    @pytest.fixture
    def mpnn_type(self):
        return NAME


class TestMyPotential(PotentialSuite):
    @pytest.fixture
    def mpnn_type(self):
        return NAME


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MyType", "must be one of 'SchNet', .* or module:Class, got 'MyType'"),
        ("my_packag.my_module:MyType", "no module 'my_packag'"),
        ("my_package.my_modul:MyType", "no module 'my_package.my_modul'"),
        ("my_package.my_module:MyTyp", "my_package.my_module has no 'MyTyp'"),
        ("my_package.broken:MyType", "cannot be imported: division by zero"),
        (":", "cannot be imported"),
        ("my_package.others:NotAType", "is no message-passing type: derive it from"),
        ("my_package.others:Undescribed", "give it `properties`"),
        ("my_package.others:Blind", "it sees no lengths"),
        ("my_package.others:Misspelt", "'num_gausians', which is no key of Architecture"),
        ("my_package.others:Likeness", "is not derived from hydragnn_flow.models.mpnn.Mess"),
        ("my_package.others:Empty", "has no layers after its __init__"),
        ("my_package.others:Listed", "has no layers after its __init__"),
        ("my_package.others:Failing", r"cannot be constructed \(KeyError: 'slope'\)"),
        ("my_package.others:Unready", r"cannot be constructed \(AttributeError: "),
        ("my_package.others:OtherArguments", r"cannot be constructed \(TypeError: "),
    ],
)
def test_what_is_no_type_is_told_in_one_sentence(name, said):
    with pytest.raises(InputError, match=f"Architecture.*{said}") as error:
        build_model(network(name, potential=name.endswith(":Blind")), manifest())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "kind"), [("Huge", RuntimeError), ("OnABrokenDisk", OSError)])
def test_lack_of_memory_and_failing_disks_keep_their_names(name, kind):
    """The trainer makes `out_of_memory` and `interrupted` of them."""
    with pytest.raises(kind) as error:
        build_model(network(f"my_package.others:{name}", potential=False), manifest())
    assert not isinstance(error.value, InputError)


def test_wrong_options_are_told():
    for options, said in (({"slop": 2.0}, "did you mean 'slope'"), ({"slope": -1.0}, "greater")):
        with pytest.raises(InputError, match=f"mpnn_options: .*{said}"):
            load_network(network(NAME, mpnn_options=options))


def _searched(folder, space):
    search = CONFIG["search"] | {"space": space}
    return resolve_config({**CONFIG, "search": search}, folder / "small.yaml")


def test_it_may_be_searched_with_its_options(tmp_path):
    types = {"Architecture.mpnn_type": {"choices": ["SchNet", NAME]}}
    slope = {"float": [0.5, 2.0]}

    def with_slope(of):
        return types | {SLOPE: slope | {"when": {"Architecture.mpnn_type": [of]}}}

    config = _searched(tmp_path, with_slope(NAME))
    network = config.network_with({"Architecture.mpnn_type": NAME, SLOPE: 0.7})
    assert network.Architecture.mpnn_options == {"slope": 0.7}
    with pytest.raises(InputError, match="slope: changes nothing here"):
        _searched(tmp_path, with_slope("SchNet"))
    with pytest.raises(InputError, match="no module 'mine'"):
        _searched(tmp_path, {"Architecture.mpnn_type": {"choices": ["SchNet", "mine:Type"]}})


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_campaign_searches_trains_and_predicts_with_it(package, tmp_path):
    network = NETWORK | {"Architecture": NETWORK["Architecture"] | {"mpnn_type": NAME}}
    search = {"trials": 2, "min_epochs": 1, "space": {SLOPE: {"float": [0.5, 2.0]}}}
    training = NETWORK["Training"] | {"num_epoch": 2}
    config = write_config(
        tmp_path,
        network=network | {"Training": training},
        search=search,
        ensemble={"size": 2, "epochs": 2, "coverage": 0.9},
    )
    environment = {**os.environ, "PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}"}
    flow = [sys.executable, "-m", "hydragnn_flow"]
    for command in (
        ["run", config, "--run-dir", "run"],
        ["predict", "run", "run/store.gs", "-o", "predictions.csv"],
        ["report", "run"],
    ):
        with bound_to(TWO_CORES):
            done = subprocess.run(
                [*flow, *command], capture_output=True, text=True, cwd=tmp_path, env=environment
            )
        assert done.returncode == 0, done.stderr + done.stdout
    assert (tmp_path / "predictions.csv").read_text().count("\n") > 10
