"""Profile of a trial for the terminal, measured by the requested number of processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from torch import multiprocessing
from torch.distributed import FileStore  # type: ignore[attr-defined]  # absent from torch's types
from torch.multiprocessing.spawn import start_processes

from hydragnn_flow.config import NetworkConfig, load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.device import this_device
from hydragnn_flow.training.distributed import joined
from hydragnn_flow.training.profile import TrainingProfile, profile_training


def network_of(directory: RunDirectory, trial: int | None) -> dict[str, Any]:
    """The network of a trial, or the one that the run's configuration gives before any search.

    Raises
    ------
    InputError
        If the run has no such trial.
    """
    parameters: dict[str, Any] = {}
    if trial is not None:
        trials = {record.number: record for record in read_trials(directory.path)}
        if trial not in trials:
            raise InputError(f"{directory.path}: has no trial {trial}; see `hydragnn-flow status`")
        parameters = trials[trial].parameters
    return read_run(directory.path).config.network_values(parameters)


def profile_network(
    network: dict[str, Any],
    store: Path,
    *,
    ranks: int = 1,
    seconds: float = 5.0,
    say: Callable[[str], None] = lambda mode: None,
) -> TrainingProfile:
    """Measure training steps of a network in processes of their own.

    Parameters
    ----------
    network
        HydraGNN's `NeuralNetwork` section.
    store
        The GraphStore to train on.
    ranks
        Processes that train together by DDP, each on an accelerator of its own if there are any.
    seconds
        Time for each mode.
    say
        Told the mode that begins.
    """
    checked = load_network(network)  # a mistake is told here and not by a process that ends
    if this_device().type != "cpu" and ranks > (available := torch.accelerator.device_count()):
        raise InputError(f"--ranks {ranks}: there are {available} accelerators; ask for fewer")
    answers: SimpleQueue[Any] = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, checked, str(store), folder, seconds, answers)
        processes: Any = start_processes(  # type: ignore[no-untyped-call]  # torch has no types here
            _measure, arguments, nprocs=ranks, join=False, start_method="spawn"
        )
        while True:
            # Returns when a process has ended, and raises what it died of.
            over = processes.join(timeout=0.2)
            while not answers.empty():
                answer = answers.get()
                if isinstance(answer, InputError):
                    raise answer
                if isinstance(answer, TrainingProfile):
                    processes.join()
                    return answer
                say(answer)
            if over:
                raise RuntimeError("the measuring process ended without an answer")


def _measure(
    rank: int,
    ranks: int,
    network: NetworkConfig,
    store: str,
    folder: str,
    seconds: float,
    answers: SimpleQueue[Any],
) -> None:
    torch.set_num_threads(1)
    device = this_device()
    if device.type != "cpu":
        device = torch.device(device.type, rank)
        torch.accelerator.set_device_index(rank)  # for what NCCL does with no tensor at hand
    spec = SegmentSpec(
        kind="trial",
        number=0,
        directory=folder,
        store=store,
        network=network,
        until_epoch=1,
        rung=0,
        seed=0,
    )
    try:
        with (
            joined(rank, ranks, FileStore(f"{folder}/rendezvous", ranks), device.type) as world,
            GraphStore.open(store, without=("y", "y_loc")) as graphs,
        ):
            say = answers.put if world.is_first else lambda mode: None
            profile = profile_training(spec, graphs, device, world, seconds, say)
            if world.is_first:
                answers.put(profile)
    except InputError as error:
        answers.put(error)


def profile_tables(profile: TrainingProfile) -> RenderableType:
    """The modes, and their meaning for a step."""
    modes = Table("mode", "steps", "ms/step", "CPU ms/step", "graphs/s")
    for timing in profile.timings.values():
        modes.add_row(
            timing.mode,
            str(timing.steps),
            f"{1e3 * timing.seconds:.2f}",
            f"{1e3 * timing.cpu_seconds:.2f}",
            f"{timing.graphs_per_second:,.0f}",
        )
    total = sum(profile.breakdown.values())
    breakdown = Table("a step's time goes into", "ms", "fraction")
    for what, spent in profile.breakdown.items():
        breakdown.add_row(what, f"{1e3 * spent:.2f}", f"{spent / total:.0%}")
    joules = profile.joules_per_graph
    facts = (
        f"a step: {profile.graphs:.1f} graphs, {profile.atoms:,.0f} atoms, "
        f"{profile.edges:,.0f} edges over {profile.ranks} x {profile.device.split(':')[0]}; "
        f"{profile.parameters:,} parameters",
        f"achieved {profile.flops_per_second / 1e9:.2f} GFLOP/s "
        f"({profile.flops / 1e9:.3f} GFLOP in a step)",
        f"peak memory {profile.peak_memory_gib:.3f} GiB of a process",
        f"energy {joules:.3g} J a graph"
        if joules is not None
        else "energy: nothing here counts it",
    )
    return Group(modes, breakdown, *facts)
