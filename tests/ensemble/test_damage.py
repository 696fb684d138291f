"""Ensembles with damaged files are refused by name; a member may be left out."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk
from ensemble_cases import untrained_ensemble
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.config.network import read_json
from hydragnn_flow.ensemble.summary import CHECKSUMS, verify_checksums, write_checksums
from hydragnn_flow.files import write_json
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint

MEMBER = "members/1"
NAMES = ("ensemble.json", "manifest.json", "applicability.json")


@pytest.fixture(scope="module")
def made(alloy_store, tmp_path_factory):
    """A finished run; tests only read it."""
    return untrained_ensemble(tmp_path_factory.mktemp("made"), alloy_store, 3)


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "run"))


def sealed(folder):
    """Checksums for files as they are: what only the content of the files can tell."""
    write_checksums(folder, read_json(folder / CHECKSUMS)["sha256"])


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_flipped_bit_is_found(run, data):
    folder = run / "ensemble"
    names = [CHECKSUMS, *read_json(folder / CHECKSUMS)["sha256"]]
    assert len(names) == 4 + 2 * 3
    file = folder / data.draw(st.sampled_from(names))
    sound = file.read_bytes()
    place = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(flipped)
    try:
        with pytest.raises(InputError) as refused:
            verify_checksums(folder)
    finally:
        file.write_bytes(sound)
    # A name in the list of checksums that is another now is that of a missing file.
    assert file.name in str(refused.value) or file.name == CHECKSUMS
    verify_checksums(folder)


def edited(folder, change):
    summary = read_json(folder / "ensemble.json")
    change(summary)
    write_json(folder / "ensemble.json", summary)


def with_weights(folder, change):
    file = folder / MEMBER / FILE
    state = load_checkpoint(file)
    change(state)
    save_checkpoint(file, state)


def not_a_number(state):
    weights = [values for values in state["best"].values() if values.is_floating_point()]
    weights[0].view(-1)[0] = torch.nan


@pytest.mark.parametrize(
    ("damage", "seals", "says"),
    [
        (lambda f: (f / MEMBER / FILE).unlink(), False, "members/1/checkpoint.pt: is missing"),
        (lambda f: (f / MEMBER / "config.json").unlink(), False, "config.json: is missing"),
        (lambda f: (f / "manifest.json").unlink(), False, "manifest.json: is missing"),
        (lambda f: (f / CHECKSUMS).unlink(), False, "checksums.json: is missing"),
        (lambda f: (f / "manifest.json").write_text("{}"), True, "manifest.json: targets: "),
        (
            lambda f: shutil.copyfile(f / "members/0" / FILE, f / MEMBER / FILE),
            False,
            "members/1/checkpoint.pt: has changed since",
        ),
        (lambda f: edited(f, lambda s: s.update(coverage=0.5)), False, "ensemble.json: has chan"),
        (
            lambda f: edited(f, lambda s: s["members"][0].update(weight=3.0)),
            True,
            "ensemble.json: is damaged (Expected `float` <= 1.",
        ),
        (
            lambda f: edited(f, lambda s: s["members"][0].update(weight=0.99)),
            True,
            "ensemble.json: weights of the members add up to",
        ),
        (lambda f: edited(f, lambda s: s.update(version=1)), True, "ensemble.json: has version 1"),
        (lambda f: with_weights(f, not_a_number), True, "weights that are not finite"),
        (lambda f: with_weights(f, lambda s: s.pop("best")), True, "holds no weights"),
        (lambda f: with_weights(f, lambda s: s.update(best={"a": 1})), True, "has no attribute"),
        (
            lambda f: with_weights(f, lambda s: s["best"].popitem()),
            True,
            "members/1/checkpoint.pt: does not hold the weights of the network in config.json",
        ),
        (
            lambda f: with_weights(
                f, lambda s: s["best"].update({k: torch.zeros(3, 5) for k in list(s["best"])[:1]})
            ),
            True,
            "members/1/checkpoint.pt: does not hold the weights of the network in config.json",
        ),
        (
            lambda f: (f / MEMBER / FILE).write_bytes(b"no checkpoint"),
            True,
            "members/1/checkpoint.pt: is not a readable checkpoint",
        ),
    ],
)
def test_damage_is_refused_by_name(run, damage, seals, says):
    folder = run / "ensemble"
    damage(folder)
    if seals:
        sealed(folder)
    with pytest.raises(InputError) as refused:
        Ensemble.load(run)
    assert says in str(refused.value)


def test_a_damaged_member_can_be_left_out(made, run):
    whole = Ensemble.load(made)
    (run / "ensemble" / MEMBER / FILE).write_bytes(b"")
    left = Ensemble.load(run, without=(1,))
    assert len(left.models) == 2
    np.testing.assert_allclose(left.weights, whole.weights[[0, 2]] / whole.weights[[0, 2]].sum())
    structure = bulk("Cu", cubic=True)
    columns = ["energy_member_0", "energy_member_2"]
    then, now = (some.predict(structure, members=True).graphs for some in (whole, left))
    assert then is not None and now is not None
    assert now[columns].equals(then[columns]) and "energy_member_1" not in now
    np.testing.assert_allclose(now["energy_mean"], now[columns].to_numpy() @ left.weights)


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ((7,), "member 7 cannot be left out; two of its members, 0, 1, 2"),
        ((0, 2), "member 0, 2 cannot be left out"),
    ],
)
def test_members_that_cannot_be_left_out(made, without, says):
    with pytest.raises(InputError, match=says):
        Ensemble.load(made, without=without)


def test_what_is_missing_of_an_ensemble_is_said(tmp_path):
    def said():
        with pytest.raises(InputError) as refused:
            Ensemble.load(tmp_path / "run")
        return str(refused.value)

    assert "does not exist" in said()
    (tmp_path / "run").mkdir()
    assert "neither the directory of a run" in said()
    (tmp_path / "run" / "run.yaml").write_text("name: some\n")
    assert "holds no finished ensemble yet; run the campaign" in said()


def test_checksums_are_written_before_what_says_that_an_ensemble_is_complete(run):
    times = [(run / "ensemble" / n).stat().st_mtime_ns for n in (CHECKSUMS, "ensemble.json")]
    assert times == sorted(times)
    assert json.loads((run / "ensemble" / CHECKSUMS).read_text())["version"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "../../.bashrc",
        "/dev/zero",
        "members/0/../../../config.json",
        "members\\0\\config.json",
        "members/0/config.json\n",
        "members/٠/config.json",
        "run.yaml",
        "",
    ],
)
def test_names_that_lead_out_of_an_ensemble_are_not_followed(run, name):
    """A stranger writes names as they please, and checksums that are right."""
    file = run / "ensemble" / CHECKSUMS
    values = read_json(file)
    values["sha256"] = dict(sorted({**values["sha256"], name: "0" * 64}.items()))
    write_json(file, values)
    with pytest.raises(InputError, match=r"checksums\.json: is damaged \(an ensemble has no file"):
        Ensemble.load(run)


@pytest.mark.parametrize("name", [CHECKSUMS, "ensemble.json", f"{MEMBER}/{FILE}"])
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "directory", "device"],
)
def test_files_without_an_end_are_not_read(run, name, make):
    file = run / "ensemble" / name
    file.unlink()
    make(file)
    with pytest.raises((InputError, OSError), match=file.name) as refused:
        Ensemble.load(run)
    assert "regular file" in str(refused.value) or "directory" in str(refused.value)


def test_a_file_without_a_checksum_is_not_used(run):
    folder = run / "ensemble"
    names = read_json(folder / CHECKSUMS)["sha256"]
    write_checksums(folder, [name for name in names if name != f"{MEMBER}/{FILE}"])
    with pytest.raises(InputError, match=rf"{CHECKSUMS}: has none of {MEMBER}/{FILE}"):
        Ensemble.load(run)


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("ensemble.json", "members.0.member", "../../../x"),
        ("ensemble.json", "members.0.member", -1),
        ("ensemble.json", "members.0.member", 10**30),
        ("ensemble.json", "members.0.weight", float("nan")),
        ("ensemble.json", "members.0.weight", -5.0),
        ("ensemble.json", "members.0.weight", "0.5"),
        ("ensemble.json", "members.0", []),
        ("ensemble.json", "members", {"a": 1}),
        ("ensemble.json", "coverage", [0.9]),
        ("ensemble.json", "coverage", 9),
        ("ensemble.json", "aggregation", "sum"),
        ("ensemble.json", "calibration", []),
        ("ensemble.json", "calibration.energy.deviations", {"scale": 1}),
        ("ensemble.json", "calibration.energy.scores.0.0.score", "high"),
        ("ensemble.json", "calibration_by_data_set", []),
        ("applicability.json", "version", "2"),
        ("applicability.json", "ranges", []),
        ("applicability.json", "elements", "Cu"),
        ("applicability.json", "fractions", {"Cu": {"low": 0, "high": 1, "margin": 0}}),
        ("applicability.json", "usual", []),
        ("applicability.json", "usual.volume", [1.0]),
        ("applicability.json", "usual.closeness.pairs", {"1-9-9": 1.0}),
        ("manifest.json", "targets", []),
        ("manifest.json", "statistics.degree_histogram", "many"),
        ("members/1/config.json", "NeuralNetwork", []),
        ("members/1/config.json", "NeuralNetwork.Architecture", "deep"),
        *((file, "", "deep") for file in (CHECKSUMS, *NAMES, f"{MEMBER}/config.json")),
    ],
)
def test_values_of_another_type_are_named(run, file, path, value):
    """Whoever sealed them."""
    folder = run / "ensemble"
    if path:
        values = inner = read_json(folder / file)
        *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
        for key in keys:
            inner = inner[key]
        inner[last] = value
        write_json(folder / file, values)
    else:
        (folder / file).write_text("[" * 100_000)
    if file != CHECKSUMS:
        sealed(folder)
    with pytest.raises(InputError, match=file) as refused:
        Ensemble.load(run)
    assert str(refused.value).count("\n") == 0
