"""Bad configurations and directories get one sentence, exit code 2, and change nothing."""

import pytest
from campaign_cases import CONFIG
from console_cases import changed, with_data

from hydragnn_flow.config import load_config
from hydragnn_flow.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        ("search/trails", 5, ["trails", "trials"]),
        ("network/Architecture/hidden_dim", "wide", ["Architecture", "hidden_dim"]),
        ("network", "missing.json", ["missing.json"]),
    ],
)
def test_configuration(console, monkeypatch, path, value, names):
    file = console.write(changed(path, value))
    where = "missing.json" if value == "missing.json" else "campaign.yaml"
    console.refuses(monkeypatch, "run", file, "--run-dir", console.run, names=[where, *names])


def test_an_output_the_data_do_not_have(console, monkeypatch):
    config = changed("network/Architecture/enable_interatomic_potential", False)
    config["network"]["Variables_of_interest"] = {"output_names": ["band_gap"], "type": ["node"]}
    console.refuses(
        monkeypatch,
        *("run", console.write(config), "--run-dir", console.run),
        names=["band_gap", "output_names"],
    )


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
    ],
)
def test_a_network_for_other_targets_is_refused_before_anything_is_read(
    console, monkeypatch, targets, network, names
):
    config = with_data(targets=targets)
    if network:
        config["network"]["Architecture"]["enable_interatomic_potential"] = False
        config["network"]["Variables_of_interest"] = network
    command = ("run", console.write(config), "--run-dir", console.run, "--data", console.folder)
    console.refuses(monkeypatch, *command, names=["campaign.yaml", "the data", *names])


def test_a_directory_of_another_configuration(console, monkeypatch):
    directory = RunDirectory(console.run)
    directory.record_start(load_config(console.write(CONFIG)))
    directory.journal.touch()
    file = console.write(changed("seed", 99))
    console.refuses(
        monkeypatch,
        *("run", file, "--run-dir", console.run),
        names=["run.yaml", "seed", "--run-dir"],
    )


def test_a_directory_of_something_else(console, monkeypatch):
    console.run.mkdir()
    (console.run / "thesis.tex").write_text("precious")
    console.refuses(
        monkeypatch, *("run", console.write(CONFIG), "--run-dir", console.run), names=["--run-dir"]
    )


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "{config}", "--site", "frontire"], ["frontire", "local"]),
        (["status", "{folder}"], ["run.yaml"]),
        (["report", "{folder}"], ["run.yaml"]),
        (["predict", "{folder}", "x.xyz"], ["ensemble"]),
        (["predict", "{folder}", "x.xyz", "-o", "out.txt"], ["out.txt", ".csv"]),
        (["predict", "{folder}", "x.xyz", "-o", "{folder}/no/out.csv"], ["--out", "{folder}/no"]),
        (["prepare", "{config}", "--run-dir", "{config}/run"], ["{config}/run", "is a file"]),
        (["run", "{config}", "--run-dir", "{config}/run"], ["{config}/run", "is a file"]),
        (["store", "info", "{folder}/nowhere"], ["nowhere"]),
    ],
)
def test_other_commands(console, monkeypatch, arguments, names):
    config = console.write(CONFIG)
    filled = [a.format(config=config, folder=console.folder) for a in arguments]
    expected = [n.format(config=config, folder=console.folder) for n in names]
    console.refuses(monkeypatch, *filled, names=expected)
