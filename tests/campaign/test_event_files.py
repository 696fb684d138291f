"""Event files: what TensorBoard reads of a run is what its ledger says, whoever wrote it when."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_cases import CONFIG, TRIALS
from phase_cases import Campaign, FakePool, member_phase, run, trained, well

from hydragnn_flow.campaign import check_paths, start
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.event_files import FOLDER, EventFiles
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.segment import SegmentResult, SegmentSpec

Scalars = dict[str, dict[str, list[tuple[int, float]]]]
"""Run of TensorBoard's -> tag -> (epoch, value)."""


def learning(spec: SegmentSpec) -> SegmentResult:
    """A segment whose losses and errors fall with its epochs."""
    epochs = range(spec.after_epoch + 1, spec.until_epoch + 1)
    return replace(
        well(spec),
        history=[[e, 2.0 / e, 1.0 / e, spec.number + 1 / e] for e in epochs],
        metrics={"energy_mae": 0.5 / spec.until_epoch},
        learning_rate=1e-3,
        started=10.0 * spec.rung,
        ended=10.0 * (spec.rung + 1),
    )


def at_work(campaign: Campaign, **search: Any) -> Context:
    """The context of a driver whose configuration asks for event files."""
    pytest.importorskip("tensorboard", reason="tensorboard writes event files, and reads them here")
    context = campaign(**search)
    context.config = context.config.model_copy(update={"tensorboard": True})
    context.__post_init__()
    return context


def scalars(folder: Path) -> Scalars:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    read = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(folder))
    read.Reload()
    return {
        name: {
            tag: [(event.step, event.value) for event in read.Scalars(name, tag)]
            for tag in tags["scalars"]
        }
        for name, tags in read.Runs().items()
        if tags["scalars"]
    }


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_every_epoch_is_a_point_and_every_segment_an_error(campaign: Campaign) -> None:
    context = at_work(campaign)
    records, _ = run(context, learning)
    trained(member_phase(context, records[:2]), FakePool(learning))
    results = list(context.directory.results())
    read = scalars(context.directory.path / FOLDER)
    assert read.keys() == {f"{result.kind}-{result.number}" for result in results}
    assert {"member-0", "member-1", "trial-0"} <= read.keys()
    for name, tags in read.items():
        mine = [r for r in results if f"{r.kind}-{r.number}" == name]
        rows = [row for result in mine for row in result.history]
        for place, tag in enumerate(("loss/training", "loss/validation", "criterion"), start=1):
            assert [step for step, _ in tags[tag]] == [row[0] for row in rows]
            assert [v for _, v in tags[tag]] == pytest.approx([row[place] for row in rows])
        ends = [result.to_epoch for result in mine]
        assert [step for step, _ in tags["learning_rate"]] == ends
        errors = [result.metrics["energy_mae"] for result in mine]
        assert [v for _, v in tags["validation/energy_mae"]] == pytest.approx(errors)
        if name.startswith("trial"):
            values = [result.best_val_error for result in mine]
            assert [v for _, v in tags["objective/val_error"]] == pytest.approx(values)


def test_the_tab_of_hyper_parameters_shows_trials_and_their_objectives(campaign: Campaign) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import metadata

    context = at_work(campaign, objectives=["val_error", "seconds"], rungs="none")
    run(context, learning)
    read = EventMultiplexer().AddRunsFromDirectory(str(context.directory.path / FOLDER))
    read.Reload()
    runs = read.PluginRunToTagToContent(metadata.PLUGIN_NAME)
    about = metadata.parse_experiment_plugin_data(runs["."][metadata.EXPERIMENT_TAG])
    assert {info.name for info in about.hparam_infos} == set(CONFIG["search"]["space"])
    shown = [info.name.tag for info in about.metric_infos]
    assert shown == ["objective/val_error", "objective/seconds"]
    begun = {}
    for number in range(TRIALS):
        content = runs[f"trial-{number}"][metadata.SESSION_START_INFO_TAG]
        begun[number] = metadata.parse_session_start_info_plugin_data(content).hparams
        assert set(shown) <= set(read.Runs()[f"trial-{number}"]["scalars"])
    for result in context.directory.results():
        for path, value in result.parameters.items():
            said = begun[result.number][path]
            assert getattr(said, said.WhichOneof("kind")) == value


def test_a_driver_that_was_killed_writes_no_point_twice(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        if spec.number == 4:
            raise KeyboardInterrupt
        return learning(spec)

    first = at_work(campaign)
    with pytest.raises(KeyboardInterrupt):
        run(first, machine)
    folder = first.directory.path / FOLDER
    before = files(folder)
    # It had recorded the last segment, and not drawn it; another was lost with the node's power.
    *_, lost, emptied = sorted(path for path in folder.glob("trial-*/*"))
    lost.unlink()
    emptied.write_bytes(b"")
    context = at_work(campaign)
    assert files(folder) == before
    run(context, learning)
    assert before.items() <= files(folder).items()
    for tags in scalars(folder).values():
        steps = [step for step, _ in tags["criterion"]]
        assert steps == sorted(set(steps))
    # All of it follows from the ledger, also for one who asks when the run is over.
    after = files(folder)
    for path in folder.rglob("*tfevents*"):
        path.unlink()
    EventFiles(context.directory, context.config).restore()
    assert files(folder) == after


def test_members_that_were_set_aside_are_no_longer_shown(campaign: Campaign) -> None:
    context = at_work(campaign)
    records, _ = run(context, learning)
    trained(member_phase(context, records[:2]), FakePool(learning))
    context.directory.set_ensemble_aside()
    at_work(campaign)
    read = scalars(context.directory.path / FOLDER)
    assert read and not [name for name in read if name.startswith("member")]


def test_epochs_that_are_trained_again_and_infinite_losses_do_no_harm(campaign: Campaign) -> None:
    def machine(spec: SegmentSpec) -> SegmentResult:
        result = learning(spec)
        result.history[0][1] = math.inf
        if spec.number == 1 and not spec.may_have_begun:
            return replace(result, status="interrupted")
        return result

    context = at_work(campaign)
    run(context, machine)
    read = scalars(context.directory.path / FOLDER)
    assert read["trial-1"]["loss/training"][0] == (1, math.inf)
    steps = [step for step, _ in read["trial-1"]["criterion"]]
    assert steps == sorted(set(steps))


def test_without_the_package_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    config = RunConfig.model_validate({**CONFIG, "tensorboard": True})
    with pytest.raises(InputError, match=r'pip install "hydragnn_flow\[tensorboard\]"'):
        check_paths(config, tmp_path / "run")
    check_paths(RunConfig.model_validate(CONFIG), tmp_path / "run")
