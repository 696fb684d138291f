"""Bad data get one sentence that names the file, exit code 2, and change nothing."""

import ase.io
import pytest
from campaign_cases import CONFIG
from console_cases import changed, structures, with_data

TARGETS = {"energy": "eV", "forces": "eV/Å"}


@pytest.mark.parametrize(
    ("spoil", "more", "names"),
    [
        (list.clear, {}, []),
        (lambda made: None, {"dipole": "Debye"}, ["dipole"]),
    ],
)
def test_data_files(console, spoil, more, names):
    made = structures()
    spoil(made)
    ase.io.write(console.folder / "train.xyz", made)
    file = console.write(with_data(targets=TARGETS | more))
    command = ("run", file, "--run-dir", console.run, "--data", console.folder)
    console.refuses(*command, names=["train.xyz", *names])


@pytest.mark.parametrize(
    ("targets", "network", "names"),
    [
        ({"energy": "eV"}, {}, ["force_weight", "'forces'"]),
        ({"forces": "eV/Å"}, {}, ["enable_interatomic_potential", "'energy'"]),
        (
            {"energy": {"unit": "eV", "level": "node"}, "forces": "eV/Å"},
            {},
            ["'energy' by graph", "by node"],
        ),
        (
            {"gap": {"unit": "eV", "level": "graph"}},
            {"output_names": ["gap"], "type": ["node"]},
            ["output_names", "'gap' by node", "by graph"],
        ),
        (TARGETS, {"output_names": ["gap"], "type": ["node"]}, ["output_names", "gap"]),
    ],
)
def test_a_network_for_other_targets_is_refused_before_anything_is_read(
    console, targets, network, names
):
    config = with_data(targets=targets)
    if network:
        config["network"]["Architecture"]["enable_interatomic_potential"] = False
        config["network"]["Variables_of_interest"] = network
    command = ("run", console.write(config), "--run-dir", console.run, "--data", console.folder)
    console.refuses(*command, names=["campaign.yaml", "the data", *names])


def test_too_few_validation_structures(console):
    """What was prepared stays, and the corrected command goes on with it."""
    wrong = ("run", console.write(changed("ensemble/coverage", 0.999)), "--run-dir", console.run)
    console.refuses(*wrong, names=["ensemble.coverage", "999"], may_change=True)
    store = console.run / "store.gs"
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert before
    console.says("prepare", console.write(CONFIG), "--run-dir", console.run)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    other = ("run", console.write(changed("seed", 99)), "--run-dir", console.run)
    console.refuses(*other, names=["run.yaml", "seed", "--run-dir"])


def test_a_damaged_store(console):
    file = console.write(CONFIG)
    console.says("prepare", file, "--run-dir", console.run)
    store = console.run / "store.gs"
    largest = max(store.rglob("data.0"), key=lambda path: path.stat().st_size)
    for victim in (store / "manifest.json", largest):
        sound = victim.read_bytes()
        middle = len(sound) // 2
        for damaged in (sound[:middle], sound[:middle] + b"?" + sound[middle + 1 :]):
            victim.write_bytes(damaged)
            for command in (["store", "check", store], ["run", file, "--run-dir", console.run]):
                console.refuses(*command, names=[victim.name], may_change=True)  # the driver's lock
        victim.write_bytes(sound)
