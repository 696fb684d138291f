"""Plans: surveys of a search space, and what simulations of its campaign come to."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from campaign_cases import CONFIG, TRIALS
from phase_cases import NODE, SITE
from rich.console import Console
from typer.testing import CliRunner

from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.cli import app
from hydragnn_flow.commands.planned_tables import conclusions, duration, plan_rows
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.placement import Experience, Power, Taken, Work
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.simulation import Conditions, Configuration, Planner, Simulated, misfits

VIEW = CampaignView(Console(quiet=True))
SPACE = {
    "Architecture.mpnn_type": Parameter(choices=("SchNet", "MACE")),
    "Architecture.hidden_dim": Parameter(int=(8, 1024)),
}
JOBS = replace(SITE, scheduler="slurm", nodes=4, blocks=2, walltime=7200.0)
TOOK = Simulated(3600.0, 3000.0, 4.0, 8.0, 0.8, 0.5, {"complete": 6}, 2, 0, 1)


def planner(config, store, site=SITE, seed=0):
    return Planner(config, site, GraphStore.open(store), Conditions(), seed)


def drawn(mpnn_type, width, reason=""):
    parameters = {"Architecture.mpnn_type": mpnn_type, "Architecture.hidden_dim": width}
    return Configuration(parameters, mpnn_type, reason=reason)


def test_a_survey_depends_on_its_seed_alone(config, store):
    first, again, other = (planner(config, store, seed=seed).survey(VIEW) for seed in (0, 0, 1))
    assert first == again != other
    assert {one.mpnn_type for one in first} == {"SchNet", "EGNN", "PNA"}
    assert all(not one.reason and one.seconds > 0 and one.memory_gib > 0 for one in first)


def test_a_machine_without_memory_takes_nothing(config, store):
    gcd = replace(NODE.gcd, memory_gib=NODE.gcd.process_gib * 1.001)
    tiny = replace(SITE, node=replace(NODE, gcd=gcd, device="cuda"))
    found = planner(config, store, tiny).survey(VIEW)
    refused = [one for one in found if one.reason]
    assert refused and all("GiB, a GCD has 0.5" in one.reason for one in refused)


def test_parts_of_a_space_that_fit_nowhere_are_named_with_the_reason():
    large, other = "needs 80 GiB, a GCD has 58 GiB", "needs spherical harmonics"
    found = [drawn("SchNet", width, large if width > 600 else "") for width in range(8, 1000, 40)]
    found += [drawn("MACE", width, other) for width in (100, 200, 300)]
    assert misfits(SPACE, found) == [
        f"Architecture.mpnn_type = MACE fits nowhere: {other}",
        f"Architecture.hidden_dim > 568 fits nowhere: {large}",
    ]
    few = [drawn("SchNet", width) for width in (8, 16, 32)] + [drawn("MACE", 64, "too large")]
    assert misfits(SPACE, few) == []


def test_simulations_go_from_quicker_to_slower_and_leave_nothing(
    config, store, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    quiet = Conditions(node_seconds=0.0, noise=0.0)
    draws, on_nodes = Planner(config, SITE, GraphStore.open(store), quiet, 0).simulate(VIEW, 8)
    assert all(sum(draw.trials.values()) == TRIALS for draw in draws)
    makespans = [draw.makespan for draw in draws]
    assert sum(makespans[:4]) < sum(makespans[4:])
    assert set(on_nodes) == {1, 2}
    assert on_nodes[2].makespan < on_nodes[1].makespan == sorted(makespans)[4]
    # The user's own folder there is for locks and shared memory, of any command.
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("hydragnn_flow-")] == []


def test_other_numbers_of_nodes_are_those_of_a_campaign_of_usual_length(config, store):
    """The middle error's own takes longest here, by chance of its trials."""
    chance = Conditions(node_seconds=0.0, noise=0.5)
    draws, on_nodes = Planner(config, SITE, GraphStore.open(store), chance, 2).simulate(VIEW, 4)
    makespans = [draw.makespan for draw in draws]
    assert makespans[2] == max(makespans)
    assert on_nodes[1].makespan == sorted(makespans)[2] > on_nodes[2].makespan


def told(draws, twice=TOOK, site=JOBS, **known):
    """Sentences of a plan on four nodes, or on twice as many."""
    known = {"is_calibrated": True} | known
    return " | ".join(conclusions(draws, {4: TOOK, 8: twice}, site, **known))


def test_a_plan_says_what_to_apply_for():
    assert "apply for 4.8" in told([replace(TOOK, node_hours=h) for h in (3.0, 4.0, 5.0)])


@pytest.mark.parametrize(
    ("hours", "asked"),
    [(1.0, "--walltime 01:00:00"), (1.01, "--walltime 01:10:00"), (5.0, "about 3 jobs")],
)
def test_a_plan_says_which_jobs_to_ask_for(hours, asked):
    first, _, _ = told([replace(TOOK, makespan=3600 * hours)] * 3).partition(" | ")
    assert first.startswith("ask for 2 x 2 nodes") and asked in first


def test_a_plan_says_which_blocks_the_queue_prefers():
    advice = "--blocks 1 has more priority: a job of 4 nodes"
    assert f" | {advice} | apply for" in told([TOOK] * 3, site=replace(JOBS, priority=advice))


def test_a_plan_says_what_it_does_not_know():
    sentences = told([TOOK] * 3, replace(TOOK, makespan=1800.0), is_calibrated=False)
    assert "50% shorter, +0% node-hours" in sentences
    assert "energy is not known: no segment on fake had its energy counted" in sentences
    assert "no segment was ever measured" in sentences


def test_durations():
    said = ["0.94 s", "42 s", "3 min 10 s", "5 h 20 min"]
    assert [*map(duration, (0.94, 42.4, 190, 19_200))] == said


def invoke(*arguments):
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


def test_the_commands_look_ahead_for_a_machine_that_is_not_here(store, tmp_path, monkeypatch):
    """On Frontier, without an account: nothing is submitted."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    on = ("small.yaml", "--site", "frontier", "--nodes", "2")
    planned = invoke("plan", *on, "--store", str(store), "--draws", "3")
    assert "200 of 200 configurations" in planned
    assert "energy of the GCDs, at most [kWh]" in planned, "Frontier's GCDs have a published power"
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
    shutil.copytree(store, "runs/small/store.gs")
    said = invoke("simulate", *on)
    assert "Simulated on 2 nodes of frontier" in said and "nothing was trained" in said
    assert Path("runs/small-simulated/store.gs").resolve() == tmp_path / "runs/small/store.gs"
    assert "nothing was trained" in invoke("status", "runs/small-simulated")
    with pytest.raises(InputError, match="is no GraphStore; prepare one or leave it out"):
        invoke("plan", "small.yaml", "--store", ".")


def energies(site, power=None):
    """Rows of a plan that are of energy."""
    return [row for row in plan_rows([TOOK] * 3, site, power) if "energy" in row[""]]


@pytest.mark.parametrize("rest", [None, 500.0])
def test_measured_energy_is_preferred_to_what_gcds_draw_at_most(rest):
    """Four node-hours at 2.125 kW; or eight GCD-hours at 250 W, and the rest draws 500 W."""
    assert energies(replace(JOBS, node=replace(NODE, watts=None))) == []
    site = replace(JOBS, node=replace(NODE, watts=2125.0))
    at_most = {"": "energy of the GCDs, at most [kWh]", "P10": "8.50", "P50": "8.50", "P90": "8.50"}
    assert energies(site) == [at_most]
    power = Power(250.0, 12, rest)
    found = [(row[""], row["P50"]) for row in energies(site, power)]
    expected = [("energy of segments [kWh]", "2"), ("energy of nodes, idle included [kWh]", "4")]
    assert found == expected[: 1 + (rest is not None)]
    sentences = told([TOOK] * 3, site=site, power=power)
    assert "250 W of a GCD at work, from the 12 segments on fake" in sentences
    assert ("500 W for the rest of each node" in sentences) == (rest is not None)
    assert ("was not counted" in sentences) == (rest is None)


def counted(site, watts):
    """Have segments of a site on record whose GCDs have drawn so much."""
    taken = Taken(Work(1e9, 1e9, 100, 1e6, 1e5), 10, 0.1, 2.0, 2, 0.4, joules=2.0 * watts)
    CostFile(site).write(Experience({"PNA": [taken]}, {}, [], 0.5))


def test_a_limit_of_energy_ends_planned_searches(config, store):
    search = config.search.model_copy(update={"energy_kwh": 1e-5})
    limited = config.model_copy(update={"search": search})
    with pytest.raises(InputError, match=r"search.energy_kwh: it is not known what the GCDs of"):
        planner(limited, store)
    assert planner(config, store).power is None
    counted(SITE, 40.0)
    assert planner(config, store).power == Power(40.0, 1)
    draws, _ = planner(limited, store).simulate(VIEW, 3)
    assert all(sum(draw.trials.values()) < TRIALS for draw in draws)
    draws, _ = planner(config, store).simulate(VIEW, 3)
    assert all(sum(draw.trials.values()) == TRIALS for draw in draws)


def test_searches_for_little_energy_can_be_planned_on_a_machine_that_was_not_measured(
    config, store
):
    search = config.search.model_copy(update={"objectives": ("val_error", "joules")})
    draws, _ = planner(config.model_copy(update={"search": search}), store).simulate(VIEW, 3)
    assert all(sum(draw.trials.values()) == TRIALS for draw in draws)
