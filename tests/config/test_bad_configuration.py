"""Whatever is wrong in a configuration is refused in one line naming the file and the key."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import load_config, resolve_config
from hydragnn_flow.errors import InputError

ARCHITECTURE = ("network", "NeuralNetwork", "Architecture")
TRAINING = ("network", "NeuralNetwork", "Training")
SPACE = ("search", "space")
WIDTH = (*SPACE, "Architecture.hidden_dim")
NAN, INF = float("nan"), float("inf")
FILES = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV"}}
TABLE = FILES | {"format": "csv", "structure": "cif"}

# Where, what (`...` takes the key away), and what the message must say.
MISTAKES: list[tuple[tuple[str | int, ...], Any, tuple[str, ...]]] = [
    # unknown and misspelled keys
    (("sede",), 1, ("'sede'", "did you mean 'seed'")),
    (("xyzzy",), 1, ("'xyzzy'", "known keys: data, ensemble, name, network, resources")),
    (("data", "splt"), {}, ("data", "'splt'", "did you mean 'split'")),
    (("data", "source", "structure"), 9, ("data.source", "did you mean 'structures'")),
    (("search", "trails"), 9, ("search", "did you mean 'trials'")),
    ((*WIDTH, "logs"), True, ("hidden_dim", "did you mean 'log'")),
    (("ensemble", "sise"), 3, ("ensemble", "did you mean 'size'")),
    ((*ARCHITECTURE, "hiden_dim"), 3, ("Architecture", "did you mean 'hidden_dim'")),
    ((*TRAINING, "batchsize"), 3, ("Training", "did you mean 'batch_size'")),
    (("network", "Neural"), {}, ("'Neural'",)),
    ((*SPACE, "Archtecture.radius"), {"int": [1, 2]}, ("write Architecture.radius",)),
    ((*SPACE, "Training.batch"), {"int": [1, 2]}, ("did you mean 'batch_size'",)),
    # missing keys
    (("name",), ..., ("name: this key is required",)),
    (("data",), ..., ("data: this key is required",)),
    (("network",), ..., ("network: this key is required",)),
    (("data", "source", "format"), ..., ("data.source.format: this key is required",)),
    (("ensemble", "epochs"), ..., ("ensemble: epochs or budget is needed, and neither is given",)),
    ((*ARCHITECTURE, "mpnn_type"), ..., ("Architecture.mpnn_type: this key is required",)),
    ((*ARCHITECTURE, "radius"), None, ("Architecture.radius",)),
    # wrong types
    (("data", "sampling"), "equl", ("data.sampling: must be proportional, equal, or a weight",)),
    (("data", "sampling"), {}, ("data.sampling: must be proportional, equal, or a weight",)),
    (("data", "sampling"), {0: -1}, ("data.sampling: the weight of 0 must be a number",)),
    (("data", "sampling"), {0: 0}, ("data.sampling: the weight of 0 must be a number above 0",)),
    (("data", "sampling"), {"a": True}, ("data.sampling: the weight of a must be a number",)),
    (("search", "validation_samples"), True, ("validation_samples: must be auto, all, or",)),
    (("search", "budget"), 1000, ("search.budget: must be a mapping",)),
    (("search", "budget"), {"step": 10}, ("search.budget: unknown key 'step'", "'steps'")),
    (("name",), 3, ("name:",)),
    (("seed",), "one", ("seed must be a whole number",)),
    (("seed",), True, ("seed must be a whole number",)),
    (("seed",), "1", ("seed must be a whole number",)),
    (("seed",), 1.5, ("seed:",)),
    (("seed",), -1, ("seed:",)),
    (("data",), None, ("data: must be a mapping",)),
    (("data", "path"), 3, ("data.path:",)),
    (("data", "source"), "emt_alloys", ("data.source: must be a mapping",)),
    (("data", "source", "atoms"), [8], ("data.source.atoms: has too few values",)),
    (("data", "source", "atoms"), [8, 9, 10], ("data.source.atoms:",)),
    (("data", "source", "elements"), "Cu", ("data.source.elements: must be a list",)),
    (("data", "split", "val"), True, ("val must be a number",)),
    (("data", "split", "val"), NAN, ("data.split.val:", "finite")),
    (("search", "trials"), True, ("trials must be a whole number",)),
    (("search", "space"), ["x"], ("search.space: must be a mapping",)),
    ((*WIDTH,), None, ("search.space.Architecture.hidden_dim: must be a mapping",)),
    (("search", "space"), {"hidden_dim": {"int": [8, 9]}}, ("write Architecture.hidden_dim",)),
    (
        ("search", "space"),
        {"NeuralNetwork.Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2]}},
        ("search.space.NeuralNetwork.", "write Training.Optimizer.learning_rate"),
    ),
    (("search", "space"), {"width": {"int": [8, 9]}}, ("begin it with Architecture.",)),
    (("search", "pruner"), "MedianPruner", ("must be a mapping, as {type: MedianPruner}",)),
    ((*WIDTH,), [16, 32], ("search.space.Architecture.hidden_dim: must be a mapping",)),
    ((*ARCHITECTURE, "hidden_dim"), True, ("hidden_dim must be a whole number",)),
    ((*ARCHITECTURE, "output_heads"), [{"type": "branch-0"}], ("Architecture.output_heads",)),
    ((*ARCHITECTURE, "output_heads", "grph"), {}, ("output_heads: ", "did you mean 'graph'")),
    ((*TRAINING, "Early_stopping"), True, ("Training", "did you mean 'EarlyStopping'")),
    (
        (*ARCHITECTURE, "periodic"),
        True,
        ("did you mean 'periodic_boundary_conditions'?", "nothing: periodicity comes with each"),
    ),
    ((*ARCHITECTURE, "force"), 1, ("did you mean 'force_weight'",)),
    (("network",), 3, ("network: must be a mapping",)),
    (("network",), {}, ("network", "'NeuralNetwork' is required")),
    (("network", "NeuralNetwork"), 3, ("NeuralNetwork must be a mapping",)),
    # values that make no sense
    (("name",), "../away", ("name:",)),
    (("data", "source", "format"), "cif", ("data.source.format", "'csv'", "'cif'")),
    (("data", "source", "elements"), ["Cu", "Fe"], ("data.source.elements.1", "'Fe'")),
    (("data", "source", "elements"), ["Cu", "Cu"], ("data.source.elements", "each once")),
    (("data", "source", "elements"), [], ("data.source.elements", "at least one")),
    (("data", "source", "atoms"), [20, 10], ("data.source.atoms", "[smallest, largest]")),
    (("data", "split"), {"val": 0.6, "test": 0.5}, ("data.split: the fractions leave",)),
    (("data", "split", "test"), ..., ("data.split: test is needed",)),
    (("data", "split"), ..., ("data.split: test is needed",)),
    (("data", "split", "by"), "elements", ("data.split.by", "'composition'")),
    (("data", "split", "by"), "group", ("data.split: by = group needs source.group",)),
    (
        ("data", "source"),
        FILES | {"test": "b.xyz"},
        ("data.split: test is a set the source gives",),
    ),
    (("data", "source"), FILES | {"val": "b.xyz"}, ("data.split: val is a set the source gives",)),
    (
        ("data",),
        {"source": FILES | {"val": "b", "test": "c"}, "split": {"by": "composition"}},
        ("data.split: by has nothing to draw",),
    ),
    # files and targets
    (("data", "source"), {"format": "ase"}, ("data.source.train: this key is required",)),
    (("data", "source"), FILES | {"train": ""}, ("data.source.train:", "at least 1")),
    (("data", "source"), FILES | {"train": "a\0b"}, ("data.source.train: no file has a NUL",)),
    (("data", "source"), FILES | {"train": ["a"]}, ("data.source.train: must be text",)),
    (("data", "source"), FILES | {"tset": "a"}, ("data.source:", "did you mean 'test'")),
    (("data", "source"), FILES | {"structure": "a"}, ("data.source: unknown key 'structure'",)),
    (("data", "source"), FILES | {"format": "csv"}, ("data.source.structure: this key is",)),
    (("data", "source"), FILES | {"group": ""}, ("data.source.group:", "at least 1")),
    (
        ("data", "source"),
        {"format": "ase", "train": "a"},
        ("data.source.targets: this key is required",),
    ),
    (("data", "source"), FILES | {"targets": {}}, ("data.source.targets: must not be empty",)),
    (("data", "source"), FILES | {"targets": ["a"]}, ("data.source.targets: must be a mapping",)),
    (("data", "source"), FILES | {"targets": {"e": 3}}, ("targets.e: give the unit", "got 3")),
    (("data", "source"), FILES | {"targets": {"e": {}}}, ("targets.e.unit: this key is required",)),
    (
        ("data", "source"),
        FILES | {"targets": {"e": {"unt": "eV"}}},
        ("data.source.targets.e: unknown key 'unt'; did you mean 'unit'",),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"e": {"unit": "eV", "level": "atom"}}},
        ("data.source.targets.e.level:", "'node'", "'atom'"),
    ),
    (
        ("data", "source"),
        TABLE | {"targets": {"e": {"unit": "eV", "level": "node"}}},
        ("data.source: targets.e.level: a cell holds one number",),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"pos": "Å"}},
        ("data.source.targets:", "'pos' means something else", "{unit: 'Å', key: 'pos'}"),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"refractive_index": {"unit": "", "key": "n"}}},
        ("data.source.targets:", "'refractive_index' means something else", "key: 'n'"),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"gap pbe": "eV"}},
        ("data.source.targets:", "'gap pbe' is not letters", "key: 'gap pbe'"),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"spin": {"unit": "μB", "level": "node", "extensive": True}}},
        ("data.source.targets.spin:", "extensive applies to targets of structures", "remove it"),
    ),
    (
        ("data", "source"),
        FILES | {"targets": {"f": {"unit": "Ry", "key": "e_scaled_num_nodes", "extensive": True}}},
        ("data.source.targets:", "'e_scaled_num_nodes' is divided by", "remove extensive"),
    ),
    ((*TRAINING, "Optimizer", "learning_rate"), 0.0, ("Training.Optimizer.learning_rate",)),
    ((*TRAINING, "Optimizer", "learning_rate"), INF, ("Training.Optimizer.learning_rate",)),
    ((*TRAINING, "Optimizer", "type"), "Lion", ("Training.Optimizer.type", "'AdamW'")),
    ((*ARCHITECTURE, "output_heads"), {}, ("output_heads has no 'node' head",)),
    ((*ARCHITECTURE, "task_weights"), [1.0, 1.0], ("task_weights",)),
    ((*ARCHITECTURE, "force_weight"), -1.0, ("Architecture.force_weight",)),
    (
        (*ARCHITECTURE, "stress_weight"),
        1.0,
        ("Architecture.stress_weight needs a target 'stress'",),
    ),
    # beyond what can be built or counted
    ((*ARCHITECTURE, "hidden_dim"), 10**400, ("hidden_dim is out of range, got 1000",)),
    ((*ARCHITECTURE, "hidden_dim"), 10**9, ("Architecture.hidden_dim:", "equal to 1000000")),
    ((*ARCHITECTURE, "num_conv_layers"), 10**6, ("num_conv_layers:", "equal to 1000,")),
    ((*ARCHITECTURE, "max_ell"), 10**6, ("Architecture.max_ell:", "equal to 12")),
    ((*ARCHITECTURE, "correlation"), 40, ("Architecture.correlation:", "equal to 8")),
    ((*ARCHITECTURE, "correlation"), [2, 2, 10**400], ("Architecture.correlation.2:",)),
    ((*ARCHITECTURE, "num_gaussians"), 10**6, ("Architecture.num_gaussians:",)),
    ((*ARCHITECTURE, "radius"), 10**400, ("radius is out of range",)),
    ((*TRAINING, "num_epoch"), 10**400, ("num_epoch is out of range",)),
    ((*TRAINING, "batch_size"), 10**18, ("batch_size is out of range",)),
    (("data", "source", "structures"), 10**400, ("structures is out of range",)),
    (("search", "trials"), 10**400, ("trials is out of range",)),
    ((*WIDTH,), {"int": [16, 10**400]}, ("search.space.Architecture.hidden_dim",)),
    (
        (*ARCHITECTURE, "output_heads", "node", "num_headlayers"),
        3,
        ("output_heads.node", "dim_headlayers"),
    ),
    # the search space
    (("search", "space"), {}, ("search.space: must not be empty",)),
    ((*WIDTH,), {}, ("hidden_dim", "exactly one of choices, int and float")),
    ((*WIDTH,), {"choices": []}, ("hidden_dim", "choices is empty")),
    ((*WIDTH,), {"choices": 16}, ("hidden_dim.choices: must be a list",)),
    ((*WIDTH,), {"choices": [[16]]}, ("hidden_dim.choices.0: must be a number, a word",)),
    ((*WIDTH,), {"choices": [16], "int": [1, 2]}, ("hidden_dim", "exactly one")),
    ((*WIDTH,), {"choices": [16, 32], "log": True}, ("hidden_dim", "log belongs to")),
    ((*WIDTH,), {"int": [64, 16]}, ("hidden_dim", "the range [64, 16] is empty")),
    ((*WIDTH,), {"int": [64]}, ("hidden_dim.int: has too few values",)),
    ((*WIDTH,), {"int": [8, 16, 2]}, ("hidden_dim.int: has too many values, got [8, 16, 2]",)),
    ((*WIDTH,), {"int": [8, 9.5]}, ("hidden_dim.int.1: must be a whole number, got 9.5",)),
    (("ensemble", "coverage"), "90 %", ("ensemble.coverage: must be a number, got '90 %'",)),
    ((*WIDTH,), {"int": [16, "many"]}, ("hidden_dim.int.1",)),
    ((*WIDTH,), {"int": [0, 16], "log": True}, ("hidden_dim", "above zero")),
    ((*WIDTH,), {"float": [NAN, 16]}, ("hidden_dim.float.0", "finite")),
    ((*WIDTH,), {"float": [16, INF]}, ("hidden_dim.float.1", "finite")),
    ((*WIDTH,), {"int": [0, 16]}, ("search.space.Architecture.hidden_dim", "greater than")),
    ((*WIDTH, "when"), {"Architecture.mpnn_type": []}, ("hidden_dim.when lists no value",)),
    ((*WIDTH, "when"), {"Architecture.mpnn_type": "PNA"}, ("mpnn_type: must be a list",)),
    ((*WIDTH, "when"), {"Architecture.mpnn_type": ["MACE"]}, ("not in the domain of",)),
    (
        (*WIDTH, "when"),
        {"Architecture.mpn_type": ["PNA"]},
        ("'Architecture.mpn_type'", "did you mean 'Architecture.mpnn_type'"),
    ),
    # listed further down
    ((*WIDTH, "when"), {"Training.batch_size": [8]}, ("'Training.batch_size'", "before it")),
    ((*SPACE, "Architecture.mpnn_type"), {"choices": ["SchNet", "MAC"]}, ("'MAC'", "'MACE'")),
    ((*SPACE, "Architecture.mpnn_type"), {"choices": ["SchNet", "GIN"]}, ("'GIN'", "no lengths")),
    ((*SPACE, "Architecture.radius"), {"float": [3, 6]}, ("radius: the store is built",)),
    ((*SPACE, "Architecture.max_neighbours"), {"int": [9, 20]}, ("max_neighbours: the store",)),
    ((*SPACE, "Training.num_epoch"), {"int": [9, 20]}, ("num_epoch: trials could not be",)),
    ((*SPACE, "Training.patience"), {"int": [9, 20]}, ("patience: changes nothing",)),
    ((*SPACE, "Architecture.max_ell"), {"int": [1, 3]}, ("max_ell: changes nothing",)),
    ((*SPACE, "Architecture.pe_dim"), {"int": [1, 3]}, ("pe_dim: the store is built",)),
    ((*SPACE, "Architecture.num_spherical"), {"int": [2, 3]}, ("spherical: changes nothing",)),
    ((*SPACE, "Architecture.global_attn_engine"), {"choices": ["", "SGFormer"]}, ("'GPS'",)),
    ((*SPACE, "Architecture.force_weight"), {"choices": [0, 9]}, ("trials without a target",)),
    ((*SPACE, "Architecture.hidden_dim.x"), {"int": [1, 3]}, ("does not lead into a mapping",)),
    # sections that do not fit each other
    (("ensemble", "size"), 17, ("ensemble.size = 17", "search.trials = 12")),
    (("ensemble", "size"), 1, ("ensemble.size:",)),
    (("ensemble", "level"), 0.9, ("ensemble", "level is called coverage now; rename the key")),
    (("ensemble", "epochs"), 1, ("ensemble.epochs = 1", "Training.num_epoch = ")),
    (("ensemble", "coverage"), 90, ("ensemble.coverage:",)),
]


def refusal(call):
    """The one line with which a call refuses its input."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("place", "value", "said"),
    MISTAKES,
    ids=[f"{'.'.join(map(str, place))}={str(value)[:40]}" for place, value, _ in MISTAKES],
)
def test_a_mistake_is_named(place, value, said, quickstart, change, write):
    path = write(change(quickstart, place, value))
    message = refusal(lambda: load_config(path))
    assert message.startswith(str(path))
    for words in said:
        assert words in message


@pytest.mark.parametrize("text", ["name: [", "a: b: c", "\t- x", "name: 2024-13-45", "? [1]: 2"])
def test_a_file_that_is_not_yaml_is_named(text, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert refusal(lambda: load_config(path)).startswith(f"{path}: is not valid YAML")


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert refusal(lambda: load_config(path)).startswith(f"{path}: is not valid YAML")


@pytest.mark.parametrize("text", ["", "- name", "42", "quickstart"])
def test_a_file_without_keys_is_named(text, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert refusal(lambda: load_config(path)).startswith(f"{path}: must hold a mapping")


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "nowhere.yaml"
    assert refusal(lambda: load_config(path)).startswith(f"{path}: cannot be read")
    assert refusal(lambda: load_config(tmp_path)).startswith(f"{tmp_path}: cannot be read")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ('{"NeuralNetwork": {},}', "is not valid JSON"),
        ("[]", "must hold a mapping"),
        ('{"NeuralNetwork": {"a": 1, "a": 2}}', "the key 'a' is given twice"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("{}", "'NeuralNetwork' is required"),
        ('{"NeuralNetwork": {"Architecture": {"mpnn_type": "MAC"}}}', "mpnn_type"),
    ],
)
def test_the_network_file_is_named(text, said, quickstart, write, tmp_path):
    path = write({**quickstart, "network": "network.json"})
    (tmp_path / "network.json").write_text(text)
    message = refusal(lambda: load_config(path))
    assert message.startswith(str(tmp_path / "network.json"))
    assert said in message


def test_a_missing_network_file_is_named(quickstart, write, tmp_path):
    path = write({**quickstart, "network": "network.json"})
    message = refusal(lambda: load_config(path))
    assert message.startswith(f"{path}: network: there is no file {tmp_path / 'network.json'};")


def places(values, before=()):
    """The path of every key."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield (*before, key)
            yield from places(value, (*before, key))


@st.composite
def typos(draw, word):
    """A word with a letter too many, too few, wrong, swapped or in the other case."""
    letters = st.sampled_from("abcdefghijklmnopqrstuvwxyz_.")
    at = draw(st.integers(0, len(word) - 1))
    kind = draw(st.sampled_from(["insert", "delete", "replace", "swap", "case"]))
    if kind == "insert":
        return word[:at] + draw(letters) + word[at:]
    if kind == "delete":
        return word[:at] + word[at + 1 :]
    if kind == "replace":
        return word[:at] + draw(letters) + word[at + 1 :]
    if kind == "swap":
        return word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    return word[:at] + word[at].swapcase() + word[at + 1 :]


QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"
SHIPPED = yaml.safe_load(QUICKSTART.read_text())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_random_typo_in_any_key_is_named(data):
    place = data.draw(st.sampled_from(list(places(SHIPPED))))
    typo = data.draw(typos(place[-1]).filter(lambda word: word != place[-1]))
    values = copy.deepcopy(SHIPPED)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    items = list(inner.items())
    inner.clear()
    inner.update({typo if key == place[-1] else key: value for key, value in items})

    message = refusal(lambda: resolve_config(values, QUICKSTART))
    assert message.startswith(str(QUICKSTART))
    assert typo in message
