"""Searches for the fastest training: what is measured, and what is left out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from campaign_cases import TRIALS
from driver_cases import TWO_CORES
from phase_cases import FakePool, badly, change_gcd, run, well
from typer.testing import CliRunner

from hydragnn_flow import cli, trials_frame
from hydragnn_flow.campaign.driver import _finish, check_gcds
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.report.stage import stage_of, status_table
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

ALONE: dict[str, Any] = {
    "objectives": ["throughput"],
    "budget": {"steps": 20},
    "sampler": "random",
    "space": {
        "Training.precision": {"choices": ["fp32", "bf16", "fp64"]},
        "Training.accumulation_steps": {"choices": [1, 2, 4]},
    },
}


def timed(spec, **changes):
    """A segment whose fifteen steady steps took 1, 2, … seconds."""
    measured = {"steps": 20, "steady_steps": 15, "steady_graphs": 60, "gcds": ["0"]}
    return replace(well(spec), **measured | {"steady_seconds": 1.0 + spec.number} | changes)


def test_the_fastest_is_found_and_nothing_follows(campaign):
    context = campaign(**ALONE)
    pool = FakePool(timed)
    assert run_phases(context, lambda: pool) == []
    assert {spec.kind for spec in pool.sent} == {"trial"}
    assert {spec.validation.subset for spec in pool.sent} == {(1, 3)}, "of no use, so one structure"
    assert {spec.epochs.until_epoch for spec in pool.sent} == {1}
    assert _finish(context, []) is None
    assert context.directory.report.exists() and not context.directory.summary.exists()
    frame = trials_frame(context.directory.path)
    assert list(frame["value"]) == [60 / (1 + number) for number in range(TRIALS)]
    stage = stage_of(context.directory.path)
    assert (stage.phase, stage.has_members) == ("finished", False)
    status_table(context.directory.path)
    with pytest.raises(InputError, match="was a search without an ensemble"):
        read_summary(context.directory.path)
    assert not any(checkpoints(context.directory.trial(number)) for number in range(TRIALS)), (
        "no member can come of them"
    )


def test_a_strategy_that_finds_no_memory_is_a_result(campaign):
    """It is not made another strategy by dividing its steps."""
    tries: Counter[int] = Counter()

    def machine(spec):
        tries[spec.number] += 1
        return badly(spec, "out_of_memory") if spec.number == 1 else timed(spec)

    trials, _ = run(campaign(**ALONE), machine)
    assert trials[1].state == "failed"
    assert trials[1].reason.startswith("out_of_memory")
    assert set(tries.values()) == {1}


def test_nothing_shares_a_gcd_with_what_is_timed(campaign):
    context = campaign(**ALONE)
    change_gcd(context, most_segments=8)
    _, pool = run(context, timed)
    spots = Counter((node, rank.gcd) for rank, node in pool.placed)
    assert set(spots) == {("node0", 0), ("node0", 1)}
    results = [*context.directory.results()]
    assert {result.together for result in results} == {1.0}


@pytest.mark.parametrize(
    ("objective", "value"),
    [("throughput", 80 / 2), ("seconds", 1000 * 4 / 80), ("joules", 1000 * 24 / 80)],
)
def test_segments_of_a_trial_count_together(campaign, objective, value):
    """Costs are those of a thousand structures, and of all GCDs."""
    tries: Counter[int] = Counter()

    def machine(spec):
        tries[spec.number] += 1
        steady = {"steady_seconds": 1.0, "joules": 99.0, "gcds": ["0", "1"]}
        if tries[spec.number] == 1:
            steady |= {"steady_graphs": 20, "steady_joules": 10.0, "status": "interrupted"}
        elif tries[spec.number] == 2:  # over before its first steps were
            steady |= {"steady_steps": 0, "steady_seconds": 0.0, "steady_graphs": 0}
            steady |= {"status": "interrupted"}
        else:
            steady["steady_joules"] = 14.0
        return timed(spec, **steady)

    changes = {**ALONE, "objectives": [objective], "trials": 1}
    trials, _ = run(campaign(resources={"gcds": 1}, **changes), machine)

    assert trials[0].value == pytest.approx(value)


def test_a_limit_is_that_of_the_whole_trial(campaign):
    changes = {**ALONE, "objectives": ["seconds"], "constraints": {"seconds": 2.0}}
    trials, _ = run(campaign(**changes), lambda spec: timed(spec, seconds=1.0 + spec.number))
    assert [trial.feasible for trial in trials] == [n < 2 for n in range(TRIALS)]
    assert trials[0].value == pytest.approx(1000 / 60)


def test_too_few_steps_are_said(campaign):
    changes = {**ALONE, "budget": {"samples": 12}}
    context = campaign(**changes)
    pool = FakePool(lambda spec: timed(spec, steps=3, steady_steps=0))
    said = f"none of {TRIALS} trials came to an end.*after the first 5 steps, .*has taken 3"
    with pytest.raises(InputError, match=said):
        run_phases(context, lambda: pool)


def test_more_gcds_than_there_are_cannot_be_timed(campaign):
    space = {**ALONE["space"], "Resources.gcds": {"choices": [1, 4]}}
    searched = campaign(**{**ALONE, "space": space})
    with pytest.raises(InputError, match=r"space.Resources.gcds: asks for 4 GCDs.*has 2"):
        check_gcds(searched.config, searched.site)
    given = campaign(resources={"gcds": 3}, **ALONE)
    with pytest.raises(InputError, match=r"resources.gcds: asks for 3 GCDs"):
        check_gcds(given.config, given.site)
    check_gcds(campaign(**ALONE).config, given.site)


def test_speed_may_stand_beside_an_error(campaign):
    """Members follow then, and epochs are judged as ever."""
    changes = {"objectives": ["val_error", "throughput"], "rungs": "none"}
    trials, pool = run(campaign(**changes), timed)
    assert all(trial.values == (1.0 + n, 60 / (1.0 + n)) for n, trial in enumerate(trials))
    assert {spec.validation.subset for spec in pool.sent} == {None}
    assert {rank.world for rank, _ in pool.placed} == {1}


@pytest.mark.slow  # that it is read, in tests/config; that such searches end, above
def test_the_configuration_that_ships_runs(tmp_path):
    """As a user gives it, with fewer data and trials."""
    configs = Path(__file__).parents[2] / "configs"
    values = yaml.safe_load((configs / "strategy.yaml").read_text())
    values["network"] = str(configs / values["network"])
    values["data"]["source"] |= {"structures": 24, "atoms": [8, 8]}
    values["search"] |= {"trials": 2, "budget": {"steps": 8}}
    values["search"]["space"]["Training.batch_size"] = {"choices": [4]}
    file = tmp_path / "strategy.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))  # `when` names earlier ones

    def said():
        with bound_to(TWO_CORES):
            words = ["run", str(file), "--run-dir", str(tmp_path / "run")]
            done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "120"})
        assert done.exit_code == 0, done.output
        return done.output

    first = said()
    assert "throughput [structures/s]" in first and "what mattered" in first
    frame = trials_frame(tmp_path / "run")
    assert list(frame["state"]) == ["complete"] * 2 and (frame["value"] > 0).all()
    assert {result.steady_steps for result in RunDirectory(tmp_path / "run").results()} == {3}
    assert "is complete; delete it to start over" in said()
