"""Profiles and scaling studies on the GCDs of a site, and what is refused before any starts."""

import json
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from campaign_cases import CONFIG
from driver_cases import command_of
from pool_cases import site

from hydragnn_flow.campaign import profiling
from hydragnn_flow.campaign.profiling import profile_on_site, profile_spec, scaling_study
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.report.scaling import Study
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Search

pytestmark = pytest.mark.xdist_group("processes")


def begun(folder, store, **network):
    """The directory of a run that is prepared, with parts of its network replaced."""
    config = {**CONFIG, "network": json.loads(json.dumps(CONFIG["network"]))}
    for section, values in network.items():
        config["network"][section] |= values
    directory = RunDirectory(folder)
    directory.record_start(RunConfig.model_validate(config))
    directory.store.symlink_to(store.path)
    return folder


@pytest.fixture
def run(tmp_path, alloy_store):
    return begun(tmp_path / "run", alloy_store)


def test_a_study_goes_through_the_pool_of_a_site(run, monkeypatch):
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    there = site(gcds=2)
    told: list[tuple[int, int]] = []

    def progress(done, total, note):
        told.append((done, total))

    study, picture = scaling_study(run, there, gcds=[2], seconds=0.2, progress=progress)
    assert (told[0], told[-1]) == ((0, 2), (2, 2))
    points = [(point.gcds, point.batches, point.nodes) for point in study.points]
    assert points == [(2, 1, 1), (2, 2, 1)]
    strong, weak = (point.profile for point in study.points)
    assert strong is not None and weak is not None
    assert weak.graphs > 1.5 * strong.graphs > 0
    for profile in (strong, weak):
        parts = vars(profile.parts).values()
        assert profile.ranks == 2 and min(parts) > 0
        assert profile.parts.seconds == sum(parts)
    assert Study.read(study.path(run)) == study
    assert picture.stat().st_size > 10_000
    assert {path: path.read_bytes() for path in before} == before
    assert {*run.iterdir()} == {*before, run / "scaling", run / "store.gs"}

    monkeypatch.setattr(Pool, "__enter__", None)
    again, _ = scaling_study(run, there, gcds=[2], seconds=0.2)
    assert again == study, "was measured again"
    with pytest.raises(InputError, match="is a study of another network, or with other --seconds"):
        scaling_study(run, there, gcds=[2], seconds=0.3)
    moved = run.rename(run.with_name("moved"))
    again, _ = scaling_study(moved, there, gcds=[2], seconds=0.2)
    assert again == replace(study, run="moved"), "was measured again"


@pytest.mark.slow  # processes start twice
def test_a_profile_begins_again_where_a_process_dies(run, tmp_path):
    killed: list[psutil.Process] = []

    def kill_one(note):
        title = f"hydragnn_flow: trial 0 of {run / 'profile'}"
        at_work = [p for p in psutil.process_iter() if command_of(p).startswith(title)]
        if len(at_work) == 2 and not killed:
            killed.append(at_work[0])
            at_work[0].kill()

    said: list[str] = []
    trace = {"trace": tmp_path / "trace.json", "say": said.append, "waits": kill_one}
    profile, nodes = profile_on_site(run, site(gcds=2), gcds=2, seconds=1.0, **trace)
    assert killed and "SIGKILL" in "".join(said)
    assert nodes == 1 and profile.parts.reading > 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any("all_reduce" in event.get("name", "") for event in events)
    assert not (run / "profile").exists()


@pytest.mark.slow  # one of ranks that hold all of the network comes first
def test_of_a_divided_network_exchanging_is_what_other_ranks_cost(tmp_path, alloy_store):
    sharded = {"sharding": {"strategy": "FULL_SHARD"}}
    divided = begun(tmp_path / "run", alloy_store, Training=sharded)
    study, _ = scaling_study(divided, site(gcds=2), gcds=[2], seconds=1.0)
    for profile in (point.profile for point in study.points):
        assert profile is not None and profile.parts.waiting == 0
        assert min(profile.parts.reading, profile.parts.computing) > 0
        assert profile.parts.exchanging >= 0


def test_a_batch_job_is_given_up_without_all_its_gcds_and_not_after_a_long_attempt(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(profiling.time, "monotonic", lambda: now[0])
    jobs = SimpleNamespace(fleet=SimpleNamespace(free=2), running=0, site=site(gcds=2))
    waits = profiling._Waits(jobs, SimpleNamespace(width=2, seconds=1.0), lambda note: None)
    waits("")
    now[0], jobs.running = 1000.0, 2
    waits("")
    jobs.fleet.free, jobs.running = 1, 0
    waits("")
    now[0] += profiling.SECONDS_FOR_THE_OTHERS + 1.0
    with pytest.raises(CampaignStopped, match="of 2 GCDs in a batch job of site here, 1 came"):
        waits("")


def test_what_cannot_be_measured_is_refused_before_anything_starts(
    run, tmp_path, alloy_store, monkeypatch
):
    monkeypatch.setattr(Pool, "__enter__", lambda pool: pytest.fail("workers start"))
    there = site(gcds=2)
    with pytest.raises(InputError, match=r"--gcds 3: site here has 2 GCDs in all, 2 on a node"):
        profile_on_site(run, there, gcds=3)
    with pytest.raises(InputError, match=r"--gcds 4: .*; ask for 1 to 2"):
        scaling_study(run, there, gcds=[1, 4])
    with pytest.raises(InputError, match="has no trial 5; see `hydragnn-flow status`"):
        scaling_study(run, there, trial=5)
    assert not (run / "scaling").exists()
    wide = begun(tmp_path / "wide", alloy_store, Architecture={"radius": 9.0})
    with pytest.raises(InputError, match=r"radius = 9.0 Å is beyond the store's neighbour lists"):
        profile_on_site(wide, there)
    (run / "store.gs").unlink()
    with pytest.raises(InputError, match="store is not prepared yet; run it again first"):
        profile_on_site(run, there)
    small = begun(tmp_path / "small", alloy_store, Training={"batch_size": 1})
    with pytest.raises(InputError, match="a batch has 1 graphs, fewer than GCDs"):
        scaling_study(small, site(gcds=16), gcds=[16])


def test_a_trial_is_profiled_with_its_parameters(run):
    config = RunConfig.model_validate(CONFIG)
    with Search(RunDirectory(run).journal, config.search, config.num_epoch, config.seed) as search:
        for _ in range(3):
            asked = search.ask()
        search.commit()
    spec = profile_spec(run, 2, site(gcds=2), 1.0)
    assert spec.network == config.network_with(asked.parameters)
    assert spec.network != profile_spec(run, None, site(gcds=2), 1.0).network
