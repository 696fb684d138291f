"""Ensembles with damaged files are refused by name; a member may be left out."""

import os
import shutil
from pathlib import Path
from typing import Any

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


def edited(change):
    def damage(folder):
        summary = read_json(folder / "ensemble.json")
        change(summary)
        write_json(folder / "ensemble.json", summary)

    return damage


def with_weights(change):
    def damage(folder):
        state = load_checkpoint(folder / MEMBER / FILE)
        change(state)
        save_checkpoint(folder / MEMBER / FILE, state)

    return damage


def not_a_number(state):
    weights = [values for values in state["best"].values() if values.is_floating_point()]
    weights[0].view(-1)[0] = torch.nan


def of_another_shape(state):
    state["best"][next(iter(state["best"]))] = torch.zeros(3, 5)


def exchanged(folder):
    shutil.copyfile(folder / "members/0" / FILE, folder / MEMBER / FILE)


NOT_THE_NETWORKS = f"{MEMBER}/{FILE}: does not hold the weights of the network"
PLAIN: list[tuple[Any, str]] = [
    *(
        (lambda f, name=name: (f / name).unlink(), f"{name}: is missing")
        for name in (f"{MEMBER}/{FILE}", "members/1/config.json", "manifest.json", CHECKSUMS)
    ),
    (exchanged, "members/1/checkpoint.pt: has changed since"),
    (edited(lambda s: s.update(coverage=0.5)), "ensemble.json: has changed since"),
    (lambda f: (f / CHECKSUMS).write_text("[" * 100_000), f"{CHECKSUMS}: is damaged"),
]
SEALED: list[tuple[Any, str]] = [
    (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json: targets: "),
    *(
        (lambda f, name=name: (f / name).write_text("[" * 100_000), name)
        for name in ("ensemble.json", "manifest.json", "applicability.json")
    ),
    (edited(lambda s: s["members"][0].update(weight=3.0)), "ensemble.json: is damaged"),
    (edited(lambda s: s["members"][0].update(weight=0.99)), "ensemble.json: weights .* add up"),
    (edited(lambda s: s.update(version=1)), "ensemble.json: has version 1"),
    (with_weights(not_a_number), "weights that are not finite"),
    (with_weights(lambda s: s.pop("best")), "holds no weights"),
    (with_weights(lambda s: s.update(best={"a": 1})), "has no attribute"),
    (with_weights(lambda s: s["best"].popitem()), NOT_THE_NETWORKS),
    (with_weights(of_another_shape), NOT_THE_NETWORKS),
    (lambda f: (f / MEMBER / FILE).write_bytes(b"none"), "is not a readable checkpoint"),
]


@pytest.mark.parametrize(
    ("damage", "says", "seals"),
    [*((*one, lambda folder: None) for one in PLAIN), *((*one, sealed) for one in SEALED)],
)
def test_damage_is_refused_by_name_also_where_somebody_has_sealed_it(run, damage, says, seals):
    damage(run / "ensemble")
    seals(run / "ensemble")
    with pytest.raises(InputError, match=says) as refused:
        Ensemble.load(run)
    assert str(refused.value).count("\n") == 0


def test_a_damaged_member_can_be_left_out(made, run):
    whole = Ensemble.load(made)
    (run / "ensemble" / MEMBER / FILE).write_bytes(b"")
    left = Ensemble.load(run, without=(1,))
    assert len(left.models) == 2
    np.testing.assert_allclose(left.weights, whole.weights[[0, 2]] / whole.weights[[0, 2]].sum())
    structure = bulk("Cu", cubic=True)
    columns = ["energy_member_0", "energy_member_2"]
    then, now = (some.predict(structure, members=True).graphs for some in (whole, left))
    assert now[columns].equals(then[columns]) and "energy_member_1" not in now
    np.testing.assert_allclose(now["energy_mean"], now[columns].to_numpy() @ left.weights)
    for without, says in (
        ((7,), "member 7 cannot be left out; two of its members, 0, 1, 2"),
        ((0, 2), "member 0, 2 cannot be left out"),
    ):
        with pytest.raises(InputError, match=says):
            Ensemble.load(made, without=without)


def test_what_is_missing_of_an_ensemble_is_said(tmp_path):
    run = tmp_path / "run"
    for make, says in (
        (lambda: None, "does not exist"),
        (run.mkdir, "neither the directory of a run"),
        (lambda: (run / "run.yaml").write_text("name: some\n"), "holds no finished ensemble yet"),
    ):
        make()
        with pytest.raises(InputError, match=says):
            Ensemble.load(run)


def test_checksums_are_written_before_what_says_that_an_ensemble_is_complete(run):
    times = [(run / "ensemble" / n).stat().st_mtime_ns for n in (CHECKSUMS, "ensemble.json")]
    assert times == sorted(times)


def test_names_that_lead_out_of_an_ensemble_are_not_followed(run):
    """A stranger writes names as they please, and checksums that are right."""
    file = run / "ensemble" / CHECKSUMS
    values = read_json(file)
    for name in (
        *("../../.bashrc", "/dev/zero", "members/0/../../../config.json", "run.yaml", ""),
        *("members\\0\\config.json", "members/0/config.json\n", "members/٠/config.json"),
    ):
        digests = dict(sorted({**values["sha256"], name: "0" * 64}.items()))
        write_json(file, {**values, "sha256": digests})
        with pytest.raises(InputError, match=r"checksums\.json: is damaged \(.* no file"):
            Ensemble.load(run)


@pytest.mark.parametrize("name", [CHECKSUMS, f"{MEMBER}/{FILE}"])
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
        ("ensemble.json", "members.0.member", 10**30),
        ("ensemble.json", "members.0.weight", float("nan")),
        ("ensemble.json", "members.0", []),
        ("ensemble.json", "coverage", 9),
        ("ensemble.json", "calibration.energy.scores.0.0.score", "high"),
        ("ensemble.json", "calibration_by_data_set", []),
        ("applicability.json", "version", "2"),
        ("applicability.json", "ranges", []),
        ("applicability.json", "fractions", {"Cu": {"low": 0, "high": 1, "margin": 0}}),
        ("applicability.json", "usual", []),
        ("applicability.json", "usual.volume", [1.0]),
        ("applicability.json", "usual.closeness.pairs", {"1-9-9": 1.0}),
        ("manifest.json", "statistics.degree_histogram", "many"),
        ("members/1/config.json", "NeuralNetwork", []),
        ("members/1/config.json", "NeuralNetwork.Architecture", "deep"),
    ],
)
def test_values_of_another_type_are_named(run, file, path, value):
    """Whoever sealed them."""
    folder = run / "ensemble"
    values = inner = read_json(folder / file)
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in keys:
        inner = inner[key]
    inner[last] = value
    write_json(folder / file, values)
    sealed(folder)
    with pytest.raises(InputError, match=file) as refused:
        Ensemble.load(run)
    assert str(refused.value).count("\n") == 0
