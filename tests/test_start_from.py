"""Fine-tuning from the command line: a campaign that starts from an earlier one's ensemble."""

import copy

import pytest
import torch
import yaml
from campaign_cases import CONFIG
from driver_cases import has_checkpoint, start, start_until

from hydragnn_flow import Ensemble
from hydragnn_flow.report.html import model_card
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, load_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("start_from")]

FROZEN = "encoder.embedding.elements.weight"


def write(folder, name, **changes):
    """Configuration, run directory and log of a campaign."""
    values = copy.deepcopy(CONFIG) | {"name": name, **changes}
    values["search"] |= {
        "trials": 2,
        "rungs": "none",
        "space": {"Training.Optimizer.learning_rate": {"float": [1e-3, 3e-3]}},
    }
    values["ensemble"] = {"size": 2, "epochs": 7, "coverage": 0.5}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file, folder / name, folder / f"{name}.log"


def first_error(run):
    """Criterion of the first trial after its first epoch."""
    results = [result for result in RunDirectory(run).results() if result.history]
    return float(next(r.history[0][3] for r in results if r.number == 0 and r.kind == "trial"))


def test_a_campaign_starts_from_the_ensemble_of_another(tmp_path):
    earlier = write(tmp_path, "earlier")
    assert start(*earlier).wait() == 0, earlier[2].read_text()

    source = {"format": "emt_alloys", "structures": 60, "atoms": [12, 24]}
    data = {"source": source, "split": {"val": 0.2, "test": 0.2}}
    begin = {"path": "earlier", "freeze": [FROZEN]}
    later = write(tmp_path, "later", seed=8, data=data, start_from=begin)
    driver = start_until(lambda run: has_checkpoint(run, 0), "a trial that trains", *later)
    driver.kill()
    driver.wait()
    begun = later[1] / "start" / "weights.pt"
    written = begun.stat().st_mtime_ns
    assert start(*later).wait() == 0, later[2].read_text()
    assert begun.stat().st_mtime_ns == written

    assert first_error(later[1]) < first_error(earlier[1])
    weights = load_checkpoint(begun)["weights"]
    trials = [f for folder in (later[1] / "trials").iterdir() for f in checkpoints(folder)]
    assert len(trials) == 2
    for file in [*trials, *(later[1] / "ensemble").glob("members/*/checkpoint.pt")]:
        best = load_checkpoint(file)["best"]
        assert torch.equal(best[FROZEN], weights[FROZEN])
        moved = [name for name in best if not torch.equal(best[name], weights[name])]
        assert len(moved) > 5

    ensemble = Ensemble.load(later[1])  # whose layers are those that were trained
    given, layers = (
        model.encoder.layers.layers[0].scale for model in (ensemble.models[0], _first(earlier[1]))
    )
    assert given == layers
    said = RunDirectory(later[1]).started_from()
    assert said is not None and "earlier/ensemble/members/" in said
    assert said in model_card(later[1], "later")
    assert said in (later[1] / "report.html").read_text()


def _first(run):
    return Ensemble.load(run).models[0]
