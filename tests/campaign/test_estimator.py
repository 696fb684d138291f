"""What the driver expects of segments, and what it learns from those that ended."""

import copy
from dataclasses import replace

import pytest
from campaign_cases import CONFIG
from data_set_cases import branches, two_level_store, two_levels
from phase_cases import task_of
from segment_cases import network_with

from hydragnn_flow.config import RunConfig, load_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.placement import Gcd, Work
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Place, SegmentResult, TrainingOutcome

GCD = Gcd(
    *(64.0, 1e10, 1e10, 1e-5, 0.5, 4), step_seconds=1e-5, start_seconds=1e-4, epoch_seconds=1e-5
)
SITE = Site("fake", 1, Node(("0", "1"), GCD, 1, "cuda"), lambda directory: None)
SCHNET = {"Architecture.mpnn_type": "SchNet", "Training.batch_size": 4}
EGNN = {"Architecture.mpnn_type": "EGNN", "Training.batch_size": 4}
STEPS_PER_EPOCH = 9
"""Of 36 graphs, with those batches."""


@pytest.fixture
def start(campaign):
    """The context of a driver; called again, that of the next."""
    return lambda: campaign(site=SITE)


def task(context, number, parameters, *, results=None, **changes):
    """A segment of a trial, after others where they are given."""
    if results is not None:
        context.ledger.trials[number] = results
    trial = TrialRecord(number, "running", parameters, None)
    return task_of(context, trial, **changes)


def ended(task, slower, together=1.0, **changes):
    """A segment whose steps took so many times as long as its network says, and a quarter more."""
    training = slower * task.estimate.uncorrected_seconds / task.width
    steps = STEPS_PER_EPOCH * task.epochs
    outcome = TrainingOutcome(
        status="ok",
        from_epoch=task.spec.epochs.after_epoch,
        to_epoch=task.spec.epochs.until_epoch,
        steps=steps,
        step_seconds=training / steps,
        seconds=1.25 * training,
    )
    result = SegmentResult.of(task.spec, outcome, Place(gcds=["0"] * task.width))
    return replace(result.expected(task.forecast(together)), **changes)


def ratio(context, parameters, **changes):
    """How much longer than its network alone says a new trial is expected to take."""
    estimate = task(context, 99, parameters, **changes).estimate
    return estimate.seconds / estimate.uncorrected_seconds


def test_every_whole_segment_teaches(start):
    """Packed ones and gangs too; and the next driver knows what the last one learned."""
    context = start()
    assert ratio(context, SCHNET) > 1.0, "it starts and validates too"
    for _ in range(4):
        packed = [ended(task(context, n, SCHNET), 3.0, 2.0) for n in range(2)]
        gang = ended(task(context, 2, SCHNET, width=2), 3.0)
        alone = ended(task(context, 3, SCHNET), 3.0)
        context.record([*packed, gang, alone])
    learned = ratio(context, SCHNET)
    assert learned == pytest.approx(3.0 * 1.25, rel=0.3)
    assert ratio(context, EGNN) == pytest.approx(learned, rel=0.3)
    again = start()
    assert ratio(again, SCHNET) == pytest.approx(learned)
    assert ratio(again, EGNN) == pytest.approx(ratio(context, EGNN))


@pytest.mark.parametrize("compiles", ["auto", True])
def test_compiled_steps_teach_nothing_about_others(campaign, compiles):
    context = campaign(site=replace(SITE, node=replace(SITE.node, device="cpu")))
    base = context.estimator._base
    training = base.Training.model_copy(update={"compile": compiles})
    context.estimator._base = base.model_copy(update={"Training": training})
    before = ratio(context, SCHNET)
    for replayed in (20, 0):
        context.record([ended(task(context, 0, SCHNET), 3.0, replayed=replayed)])
        assert (ratio(context, SCHNET) == before) == (replayed > 0 and compiles == "auto")


def test_muon_takes_longer_on_any_number_of_gcds(start):
    """Its matrix products are repeated by every GCD."""
    muon = SCHNET | {"Training.Optimizer.type": "Muon"}
    context = start()
    adamw, slower = (
        [task(context, 0, each, width=n).estimate.uncorrected_seconds / n for n in (1, 4)]
        for each in (SCHNET, muon)
    )
    assert slower[0] > adamw[0]
    assert slower[1] - adamw[1] == pytest.approx(slower[0] - adamw[0], rel=0.05)


def test_what_did_not_do_all_of_its_work_teaches_nothing(start):
    context = start()
    before = ratio(context, SCHNET)
    for changes in (
        {"status": "diverged"},
        {"to_epoch": 1},  # early stopping, or its time was up
        {"from_step": 3},
        {"step_seconds": 0.0, "seconds": 0.0},
        {"steps": 0},
        {"step_work": []},  # a line of an earlier version
    ):
        context.record([ended(task(context, 0, SCHNET), 3.0, **changes)])
        assert ratio(context, SCHNET) == before, changes


def test_the_forecast_is_an_interval(start):
    """Of the time of each GCD, beside what was counted."""
    context = start()
    gang = task(context, 0, SCHNET, width=2)
    forecast, estimate = gang.forecast(1.0), gang.estimate
    assert forecast.predicted_low == estimate.low / 2 < gang.seconds
    assert gang.seconds < estimate.high / 2 == forecast.predicted_high
    assert forecast.busy == estimate.busy
    assert 0 < estimate.busy <= 1
    flops, moved, launches, activations, weights, *divided = forecast.step_work
    assert min(flops, moved, activations, weights) > 1000 and launches > 10
    assert divided[:3] == [1, 0, 0.0]
    assert 0 < divided[3] < weights  # of heads


def test_start_and_validation_are_learned_beside_the_steps(start):
    """A long segment starts once; it was a constant share of the steps before."""
    context = start()
    for n in range(12):
        short = task(context, n, SCHNET, until_epoch=1)
        training = ended(short, 3.0).seconds / 1.25
        context.record([ended(short, 3.0, seconds=10.0 + training)])
    long = task(context, 99, SCHNET, until_epoch=1000).estimate
    assert long.seconds / (3.0 * long.uncorrected_seconds) < 3.0
    assert task(context, 99, SCHNET, until_epoch=1).estimate.seconds == pytest.approx(10.0, rel=0.2)


def test_a_trials_own_steps_rule_its_next_segment(start):
    context = start()
    for n in range(8):
        context.record([ended(task(context, n, SCHNET), 3.0)])
    own = ended(task(context, 8, SCHNET), 12.0)
    context.record([own])
    following = {"rung": 1, "until_epoch": 400, "done": 2}
    mine = task(context, 8, SCHNET, **following, results=[own]).estimate
    other = task(context, 9, SCHNET, **following).estimate
    assert mine.seconds / other.seconds == pytest.approx(12.0 / 3.0, rel=0.3)


def test_how_well_a_trial_repeats_itself_is_learned(start):
    """From the segments of each trial one after the other, by this driver and by the next."""
    context = start()
    first = ended(task(context, 8, SCHNET), 3.0)

    def spread(context):
        following = {"rung": 1, "until_epoch": 400, "done": 2, "results": [first]}
        estimate = task(context, 8, SCHNET, **following).estimate
        return estimate.high / estimate.low

    before = spread(context)
    for n in range(12):
        for rung in (0, 1):
            context.record([ended(task(context, n, SCHNET, rung=rung), 3.0)])
    assert spread(context) < before
    assert spread(start()) == pytest.approx(spread(context))
    for n in range(12):
        context.record([ended(task(context, n, SCHNET, rung=2), 9.0)])
    assert spread(context) > 2 * before


def test_a_trial_that_shared_a_gcd_is_not_expected_to_be_slow_alone(start):
    """Three together take half as long again each; the next driver knows that they were three."""
    context = start()
    for n in range(0, 24, 4):
        shared, *others = [ended(task(context, n + k, SCHNET), 4.5, 3.0) for k in range(3)]
        alone = ended(task(context, n + 3, SCHNET), 3.0)
        context.record([shared, *others, alone])
    following = {"rung": 1, "until_epoch": 6, "done": 2}
    for driver in (context, start()):
        after = [task(driver, 8, SCHNET, **following, results=[own]) for own in (shared, alone)]
        seconds = [then.estimate.seconds for then in after]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.12), "not 1.5 times"


def margin(context, parameters, **changes):
    """Predicted over counted memory, without the process."""
    estimate = task(context, 1, parameters, **changes).estimate
    net = estimate.uncorrected_memory_gib - GCD.process_gib
    return (estimate.memory_gib - GCD.process_gib) / net


def counted(task, gib):
    """The segment, as if so much memory had been counted besides its process."""
    estimate = replace(task.estimate, uncorrected_memory_gib=GCD.process_gib + gib)
    return replace(task, estimate=estimate)


def test_memory_is_corrected_by_the_measured_peak(start):
    """Of an accelerator torch counts what it has allocated, not what its libraries take."""
    context = start()
    first, before = task(context, 0, SCHNET), margin(context, SCHNET)
    assert 1.2 < before < 1.6
    known = ended(counted(first, 2.0), 1.0, peak_memory_gib=2.6)  # as of a large network
    context.record([known] * 8)
    assert known.predicted_memory_gib == first.estimate.memory_gib
    assert 1.3 < margin(context, SCHNET) < 1.3 * before
    assert margin(start(), SCHNET) == margin(context, SCHNET)
    larger = replace(known, peak_memory_gib=6.0)
    assert 3.0 < margin(context, SCHNET, rung=1, results=[larger]) < 3.6


def test_what_did_not_fit_is_expected_to_take_more(start):
    """Of its type more than of others; unless it was not alone on its GCD, as far as one knows."""
    context = start()
    before = margin(context, SCHNET)
    failed = ended(task(context, 0, SCHNET), 1.0, status="out_of_memory")
    half = GCD.process_gib + (GCD.memory_gib - GCD.process_gib) / 2  # counted, and it took more
    context.record([replace(failed, uncorrected_memory_gib=half, together=1.5)])
    context.record([failed])  # which seemed to need next to nothing
    assert margin(context, SCHNET) == before
    context.record([replace(failed, uncorrected_memory_gib=half)])
    assert margin(context, SCHNET) > margin(context, EGNN) > before
    assert margin(start(), SCHNET) == margin(context, SCHNET)


def test_a_process_that_is_large_for_other_reasons_teaches_nothing(start):
    """What is many times what was counted of a small network is not the network's."""
    context = start()
    before, first = margin(context, SCHNET), task(context, 0, SCHNET)
    large = ended(counted(first, 0.02), 1.0, peak_memory_gib=GCD.process_gib + 1.2)
    context.record([large] * 8)
    context.record([ended(first, 1.0, peak_memory_gib=0.01)])
    assert margin(context, SCHNET) == before


@pytest.fixture
def on(start):
    """The context of a driver on GCDs of some device."""

    def begin(device):
        context = start()
        context.site = replace(SITE, node=replace(SITE.node, device=device))
        context.estimator = context.another_estimator(GCD)
        return context

    return begin


def test_on_a_cpu_the_peak_has_the_process_in_it(on):
    found = {}
    for device, process in (("cpu", GCD.process_gib), ("cuda", 0.0)):
        context = on(device)
        large = counted(task(context, 0, SCHNET), 2.5 - GCD.process_gib)
        context.estimator.learn([ended(large, 1.0, peak_memory_gib=process + 3.0)] * 4)
        found[device] = margin(context, SCHNET)
    assert found["cpu"] == found["cuda"] > 1.5


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0.22), ("cuda", GCD.process_gib)])
def test_a_process_takes_no_more_than_the_smallest_peak(on, device, expected):
    """On a CPU, where that is measured; a tenth more, as processes differ."""
    context = on(device)
    before = task(context, 0, SCHNET)
    for peak in (0.3, 0.2, 0.25, 0.0):
        context.estimator.learn([ended(before, 1.0, peak_memory_gib=peak)])
    found, were = task(context, 0, SCHNET).estimate, before.estimate
    assert found.uncorrected_memory_gib == were.uncorrected_memory_gib
    assert found.memory_gib == pytest.approx(were.memory_gib - (GCD.process_gib - expected))


def divided(context, width=1, **training):
    """Of a network whose `Training` is changed."""
    network = copy.deepcopy(context.config.network)
    network["Training"] |= {"batch_size": 16, **training}
    return context.estimator.divide(load_network(network), 1, width, ())[1]


def activations(context, **changes):
    """Counted for one GCD [GiB], weights left out."""
    weights = 5 * 4 * 1.0e3 / 2**30  # some thousand numbers
    return divided(context, **changes).uncorrected_memory_gib - GCD.process_gib - weights


def test_micro_batches_start_all_operations_anew(start):
    """So that four of them take longer than one, on the same graphs."""
    whole, parts = (divided(start(), accumulation_steps=n).step_work for n in (1, 4))
    assert parts[:2] == whole[:2] and parts[2] == 4 * whole[2]


def test_memory_is_for_the_largest_batch(start, store):
    """Of few graphs it is further above the mean one; a single graph may be the largest."""
    context = start()
    per_graph = {n: activations(context, batch_size=n) / n for n in (1, 4, 16)}
    assert per_graph[1] > per_graph[4] > per_graph[16]
    sizes = store["trainset"].n_edges
    # In micro-batches no less than the largest of them takes; GCDs have parts of equal size.
    whole, parts = activations(context), activations(context, accumulation_steps=4)
    assert whole / 4 < parts < whole / 4 * sizes.max() / sizes.mean()
    assert whole / 4 <= activations(context, width=4) < parts
    # Layers that are computed again need less.
    assert activations(context, conv_checkpointing=True) < 0.95 * whole


def test_a_limit_of_a_batch_is_not_exceeded(start, store):
    context, train = start(), store["trainset"]
    sizes = {"max_nodes": train.n_atoms, "max_edges": train.n_edges}
    limits = {key: int(4 * values.mean()) for key, values in sizes.items()}
    steps = max(-(-int(values.sum()) // limits[key]) for key, values in sizes.items())
    batching = {"mode": "node_budget", **limits}
    limited = divided(context, batch_size=4, Batching=batching).uncorrected_memory_gib
    mean = context.estimator._step_work(context.config.network_with({}), steps)
    net = (limited - GCD.process_gib) * 2**30 - 5 * mean.parameter_bytes
    full = max(steps * limits[key] / values.sum() for key, values in sizes.items())
    assert net == pytest.approx(full * mean.activation_bytes)
    assert full < 1.2 < context.estimator._sizes["atoms"].largest_batch(4)


def test_a_network_in_parts_needs_less_on_more_gcds(start):
    """Of parameters and their copies; activations are those of a GCD's own graphs either way."""
    context = start()

    def weights(strategy, width):
        values = SCHNET | {"Training.sharding.strategy": strategy, "Architecture.hidden_dim": 512}
        found = task(context, 0, values | {"Training.sharding.group": 2}, width=width)
        work = Work(*found.estimate.step_work)
        net = (found.estimate.uncorrected_memory_gib - GCD.process_gib) * 2**30
        return (net - work.activation_bytes) / work.parameter_bytes

    assert weights("NO_SHARD", 1) == pytest.approx(weights("NO_SHARD", 4)) == pytest.approx(5)
    assert weights("FULL_SHARD", 1) == pytest.approx(5)
    # The rest are parameters and gradients that are gathered: of a potential all.
    assert weights("FULL_SHARD", 4) == pytest.approx(5 / 4 + 2)
    assert weights("HYBRID_SHARD", 4) == pytest.approx(5 / 2 + 2)


def test_gcds_that_a_group_does_not_divide_are_never_given(start):
    context = start()
    values = {"Training.sharding.strategy": "HYBRID_SHARD", "Training.sharding.group": 3}
    assert context._on(task(context, 0, SCHNET | values, width=3), 3).width == 3
    flexible = replace(task(context, 0, SCHNET | values), is_flexible=True)
    assert not {4, 8} & {*context._widths(flexible)}
    with pytest.raises(InputError, match=r"group = 3 does not divide 4 GCDs"):
        task(context, 0, SCHNET | values, width=4)


def test_gcds_have_room_for_the_heads_of_their_data_sets_alone(start, tmp_path):
    store = two_level_store(tmp_path)
    heads = branches()
    for branch in heads:
        branch["architecture"] = {"num_headlayers": 2, "dim_headlayers": [300, 300]}

    def weights(width, **training):
        network = network_with(
            Architecture__output_heads={"node": heads},
            **{f"Training__{key}": value for key, value in training.items()},
        )
        data = two_levels(tmp_path).model_dump(mode="json", exclude_unset=True)
        config = RunConfig.model_validate(CONFIG | {"data": data, "network": network})
        estimator = replace(start(), config=config, store=store).another_estimator(GCD)
        _, estimate = estimator.divide(load_network(network), 1, width, [])
        return Work(*estimate.step_work).parameter_bytes

    whole = weights(2)
    assert weights(1, task_parallel=True) == whole
    # Nearly all of it are heads.
    assert weights(2, task_parallel=True) == pytest.approx(whole / 2, rel=0.1)
