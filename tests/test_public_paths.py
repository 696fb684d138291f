"""Every public function that takes a path takes text, and whatever else names one."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ase.io import write
from campaign_cases import CONFIG
from ensemble_cases import untrained_ensemble
from page_cases import REPOSITORY
from segment_cases import NETWORK
from source_cases import frames

import hydragnn_flow
from hydragnn_flow import Ensemble, GraphStore, build_model, load_config, load_site, trials_frame
from hydragnn_flow.campaign import predict_on_site, profile_on_site, scaling_study
from hydragnn_flow.config import load_network, resolve_config
from hydragnn_flow.config.network import read_json, write_network
from hydragnn_flow.data import check_store, prepare_store, write_store
from hydragnn_flow.ensemble import member_folder, recalibrate, write_predictions
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import DriverFile, sole_driver
from hydragnn_flow.search import JOURNAL, Search, read_trials


def public_functions():
    """Functions, and methods of classes, with all names of the public packages."""
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(
        r"^PUBLIC := hydragnn_flow .*addprefix hydragnn_flow\., (.*)\)", text, re.M
    )
    for package in ("hydragnn_flow", *(f"hydragnn_flow.{name}" for name in listed.split())):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", []):
            found = getattr(module, name)
            if not inspect.isclass(found):
                yield f"{package}.{name}", found
                continue
            for key in dir(found):
                if not key.startswith("_") or key == "__init__":
                    yield f"{package}.{name}.{key}", getattr(found, key)


def is_path_alone(annotation):
    """Whether an annotation, or a part of one, has a path and no text beside it."""
    alternatives, waiting = [], [annotation]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.BinOp):
            waiting += [part.left, part.right]
        else:
            alternatives.append(part)
    names = {part.id for part in alternatives if isinstance(part, ast.Name)}
    inside = [
        part.slice
        for part in alternatives
        if isinstance(part, ast.Subscript) and ast.unparse(part.value) != "Callable"
    ]
    elements = [
        e for part in inside for e in (part.elts if isinstance(part, ast.Tuple) else [part])
    ]
    return ("Path" in names and "str" not in names) or any(map(is_path_alone, elements))


def refused(function):
    """Parameters of a function of this package that want a path and take no text."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not Path(getattr(getattr(function, "__code__", None), "co_filename", "<string>")).exists():
        return []  # made for a dataclass, or no function
    return [
        name
        for name, annotation in function.__annotations__.items()
        if name != "return"
        and isinstance(annotation, str)  # as in all of this package's files
        and is_path_alone(ast.parse(annotation, mode="eval").body)
    ]


def test_no_public_function_wants_a_path_of_one_type():
    functions = [*public_functions()]
    assert len(functions) > 150
    assert {name: found for name, function in functions if (found := refused(function))} == {}


def test_a_function_that_wants_one_is_found():
    def wrong(one: Path, rest: list[Path] | None, right: str | Path, on: dict[str, Path]) -> Path:
        return one

    assert refused(wrong) == ["one", "rest", "on"]


@dataclass(frozen=True)
class Named:
    """What names a path, and is none."""

    path: str

    def __fspath__(self):
        return self.path


@pytest.fixture(scope="module")
def run(tmp_path_factory, alloy_store):
    """A directory with an ensemble, a study, files of a configuration and structures."""
    run = untrained_ensemble(tmp_path_factory.mktemp("paths") / "run", alloy_store)
    (run / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "network": NETWORK}))
    write_network(run, NETWORK)
    write(run / "some.xyz", frames(2))
    config = load_config(run / "run.yaml")
    search = Search(run / JOURNAL, config.search, 6, 0)
    search.ask()
    search.commit()
    return run


@pytest.mark.parametrize("kind", [str, Named, Path])
def test_functions_take_what_names_a_path(kind, run, alloy_store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def named(*parts):
        return kind(str(run.joinpath(*parts)))

    store = kind(str(alloy_store.path))

    assert len(read_trials(named())) == len(trials_frame(named())) == 1
    config = load_config(named("run.yaml"), data=named())
    values = yaml.safe_load((run / "run.yaml").read_text())
    assert resolve_config(values, named("run.yaml"), data=named()) == config
    assert read_json(named("config.json"))["NeuralNetwork"] == NETWORK
    assert load_network(named("config.json")) == load_network(NETWORK)
    write_network(kind("network"), NETWORK)
    assert (tmp_path / "network" / "config.json").exists()
    assert load_site(kind("local")).name == "local"
    hydragnn_flow.check_paths(config, kind("other"))

    with GraphStore.open(store, "random", scratch=kind("scratch")) as opened:
        assert isinstance(opened.path, Path)
        graphs = list(opened["trainset"])
        targets, cutoff = opened.manifest.targets, opened.manifest.cutoff
        assert len(GraphStore(store, opened.manifest, scratch=kind("scratch"))["trainset"])
    write_store(kind("new.gs"), {"trainset": graphs}, targets=targets, cutoff=cutoff)
    check_store(kind("new.gs"))
    prepare_store(config.data, 4.0, None, 0, kind("prepared.gs")).close()
    assert build_model(named("config.json"), alloy_store) is not None

    ensemble = Ensemble.load(named())
    ensemble.predict(named("some.xyz")).save(kind("saved"))
    write_predictions(ensemble, named("some.xyz"), [kind("a.csv")])
    assert {path.name for path in tmp_path.glob("*.csv")} >= {"saved.csv", "a.csv"}
    assert recalibrate(named(), store, split="testset") == {"energy": 5, "forces": 5}
    assert member_folder(named("ensemble"), 1) == run / "ensemble" / "members" / "1"

    with sole_driver(kind(str(tmp_path))) as token:
        assert DriverFile(kind(str(tmp_path))).token() == token
    Search(kind("study.journal"), config.search, 6, 0)
    for call in (profile_on_site, scaling_study):
        with pytest.raises(InputError, match="not prepared yet"):
            call(named(), load_site("local"))
    with pytest.raises(InputError, match="nowhere: does not exist"):
        predict_on_site(ensemble, named("nowhere"), [kind("a.csv")], load_site("local"))
