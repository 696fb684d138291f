"""Sites from a user's own `parsl.Config`, as Parsl's pages and those of computing centres print it.

The facts of a node are read from the executor, its provider and its launcher. The executor is made
anew with the settings of all sites; whatever these do not replace is kept.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from parsl import Config
from parsl.executors import HighThroughputExecutor, MPIExecutor
from parsl.launchers import JsrunLauncher, SimpleLauncher, SingleNodeLauncher, SrunLauncher
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider

from hydragnn_flow.config.base import validate
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import address_of
from hydragnn_flow.execution.parsl_internals import WORKER_POOL
from hydragnn_flow.execution.site import (
    Device,
    Options,
    Scheduler,
    Site,
    cores_in,
    described_node,
)
from hydragnn_flow.execution.sites.batch import JSRUN, NO_RERUN, Executors, batch_site, srun_options

_SCHEDULERS: dict[type, Scheduler | None] = {SlurmProvider: "slurm", PBSProProvider: "pbs"}
_SCHEDULERS |= {LSFProvider: "lsf", LocalProvider: None}
# Launchers that start workers on one node, whatever the number of nodes.
_ON_ONE_NODE = (SingleNodeLauncher, SimpleLauncher)
# Memory for segments of an accelerator, nine tenths of the smallest of the machines in use, and of
# a core, unless the file says it [GiB].
_GUESSED_GIB = {"accelerator": 14.0, "core": 2.0}


def site_of(path: Path, module: ModuleType, values: dict[str, Any], source: str) -> Site:
    """Make a site (description of a machine) from a file with a user's own `parsl.Config`.

    Parameters
    ----------
    path, module
        File, and the module loaded from it.
    values
        Options that the user gave, which override those of the file.
    source
        Origin of the options, for messages.

    Raises
    ------
    InputError
        If the file has no `Config` or several, none of its executors can be used, or the options
        are wrong.
    """
    executor: Any = _executor(path, module, values.get("executors"))
    provider = executor.provider
    scheduler = _checked_scheduler(path, executor)
    facts, guesses = _facts_of_node(executor)
    node = values.get("node") or {}
    if isinstance(node, dict):
        guesses = {name: guess for name, guess in guesses.items() if name not in node}
        node = facts | node
    blocks = max(1, provider.max_blocks)
    derived = {
        "nodes": blocks * provider.nodes_per_block,
        "blocks": blocks,
        "walltime": getattr(provider, "walltime", None),
        "interface": getattr(executor.address, "interface", None),
    }
    run: Options = validate(Options, derived | values | {"node": node}, source)
    run = run.resolved(path.stem, refuses=("account", "partition", "qos", "constraint"))
    assert run.node is not None  # its facts are derived
    if run.nodes_per_block > 1 and isinstance(provider.launcher, _ON_ONE_NODE):
        raise InputError(
            f"{path}: launcher: {type(provider.launcher).__name__} starts workers on one of the "
            f"{run.nodes_per_block} nodes of a block; write SrunLauncher or MpiExecLauncher"
        )
    if run.nodes_per_block > 1 and (run.node.interface or run.interface) is None:
        guesses["interface"] = (
            "the file names no network interface, by which ranks on several nodes connect; write "
            "`interface` in a site.yaml"
        )
    described = described_node(run.node, run.interface)
    names = tuple(executor.available_accelerators[: run.node.gcds])
    if len(names) == run.node.gcds:
        described = replace(described, gcds=names)
    make = _provider_like(provider, scheduler)
    site = batch_site(path.stem, described, run, make, scheduler=scheduler)
    assert isinstance(site.parsl_config, Executors)
    executors = replace(
        site.parsl_config,
        first_lines=(provider.worker_init.strip(), *site.parsl_config.first_lines),
        own=executor,
        address=_address(executor, run),
    )
    used = f"read from the executor '{executor.label}'; of the Config nothing else is used"
    return replace(site, parsl_config=executors, notes=(used, *guesses.values()))


def _executor(path: Path, module: ModuleType, named: Any) -> Any:
    """Return the executor of a file's `Config` that has the workers; ``named``: its labels."""
    found = {name: one for name, one in vars(module).items() if isinstance(one, Config)}
    if not found:
        raise InputError(f"{path}: has no attribute 'site' and no parsl.Config; define either")
    if len({*map(id, found.values())}) > 1 and "config" not in found:
        raise InputError(f"{path}: has several Configs ({', '.join(found)}); name one `config`")
    config = found.get("config", next(iter(found.values())))
    able = {
        one.label: one
        for one in config.executors
        if isinstance(one, HighThroughputExecutor) and not isinstance(one, MPIExecutor)
    }
    if not able:
        kinds = ", ".join(type(one).__name__ for one in config.executors)
        raise InputError(
            f"{path}: executors: {kinds} cannot run this package's workers; add a "
            "HighThroughputExecutor"
        )
    if named is not None:
        if not isinstance(named, list | tuple) or len(named) != 1 or named[0] not in able:
            raise InputError(f"{path}: executors: give one of {', '.join(able)} in a list")
        return able[named[0]]
    able = {name: one for name, one in able.items() if one.available_accelerators} or able
    if len(able) > 1:
        raise InputError(
            f"{path}: executors: {', '.join(able)} could each compute; write `executors: "
            f"[{next(iter(able))}]` in a site.yaml"
        )
    return next(iter(able.values()))


def _checked_scheduler(path: Path, executor: Any) -> Scheduler | None:
    """Return the batch system of an executor's provider; refuse what cannot be replaced."""
    provider = executor.provider
    kinds = [kind for kind in _SCHEDULERS if isinstance(provider, kind)]
    if not kinds:
        known = ", ".join(kind.__name__ for kind in _SCHEDULERS)
        raise InputError(
            f"{path}: provider: {type(provider).__name__} is not supported; write one of {known}"
        )
    if WORKER_POOL not in executor.launch_cmd:
        raise InputError(
            f"{path}: launch_cmd: does not start {WORKER_POOL}, whose place this package's workers "
            "take; leave launch_cmd out"
        )
    return _SCHEDULERS[kinds[0]]


def _facts_of_node(executor: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Derive the facts of a node from an executor; explain those that are guessed.

    Returns
    -------
    facts : dict
        Values of the section ``node``.
    guesses : dict
        Sentence for each fact that is not certain.
    """
    provider, names = executor.provider, executor.available_accelerators
    cores = getattr(provider, "cores_per_node", None)
    if getattr(provider, "cpus_per_node", 1) > 1:  # 1 is Parsl's default
        cores = provider.cpus_per_node
    if _is_here(provider):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    each = max(1, int(executor.cores_per_worker))
    gcds = int(executor.workers_per_node)
    if not names and executor.max_workers_per_node == math.inf and cores:
        gcds = max(1, cores // each)
    groups = tuple(_groups(executor.cpu_affinity, gcds, cores))
    if groups:
        each = len(cores_in(groups[0])) // _threads(groups)
    elif cores and each == 1:
        each = max(1, cores // gcds)
    device, why = _device(executor)
    guesses = {"device": why} if why else {}
    of_node = getattr(provider, "mem_per_node", None) or 0.0
    memory = 0.9 * (executor.mem_per_worker or of_node / gcds)
    if device != "cpu" or not memory:
        memory = each * _GUESSED_GIB["core"] if device == "cpu" else _GUESSED_GIB["accelerator"]
        guesses["memory_gib"] = (
            f"the file does not give the memory of a GCD: {memory:g} GiB is a guess; write nine "
            "tenths of what `site check` prints as `node: {memory_gib: …}` in a site.yaml"
        )
    facts = {
        "gcds": gcds,
        "device": device,
        "memory_gib": memory,
        "cores_per_gcd": each,
        "cores": groups,
        "cores_of_a_node": cores if cores and cores >= gcds * each else None,
    }
    return facts, guesses


def _groups(affinity: str, workers: int, cores: int | None) -> Iterator[str]:
    """Yield the cores of each worker by Parsl's `cpu_affinity`; none if the system chooses."""
    kind, *listed = affinity.split(":")
    yield from listed[:workers]
    if kind not in ("block", "block-reverse", "alternating") or not cores or cores < workers:
        return
    each = cores // workers
    for worker in range(workers):
        if kind == "alternating":
            yield ",".join(str(worker + workers * core) for core in range(each))
        else:
            first = each * (worker if kind == "block" else workers - 1 - worker)
            yield f"{first}-{first + each - 1}"


def _threads(groups: Sequence[str]) -> int:
    """Return the number of hardware threads of a core, if groups such as "0-7,64-71" name them.

    Linux numbers the second threads of all cores after the first ones.
    """
    ranges = [[len(cores_in(part)) for part in group.split(",")] for group in groups]
    counts, lengths = {len(one) for one in ranges}, {length for one in ranges for length in one}
    return counts.pop() if counts in ({2}, {4}) and len(lengths) == 1 and lengths != {1} else 1


def _device(executor: Any) -> tuple[Device, str]:
    """Return the type of an executor's GCDs, and a sentence if it is not certain."""
    names, provider = executor.available_accelerators, executor.provider
    asked = [getattr(provider, of, "") for of in ("scheduler_options", "select_options")]
    if not names and "gpu" not in " ".join(asked).lower():
        return "cpu", ""
    import torch  # takes seconds

    kinds: tuple[Device, ...] = ("xpu", "hip", "cuda")
    for kind in kinds:
        # Level Zero names the tiles of a card 0.0 and 0.1.
        if getattr(torch.version, kind, None) or (kind == "xpu" and any("." in n for n in names)):
            return kind, ""
    return "cuda", (
        "neither the file nor torch as installed here tells the accelerators: `cuda` is assumed; "
        "write `node: {device: …}` in a site.yaml"
    )


def _is_here(provider: Any) -> bool:
    """Return whether the workers run on this host."""
    return isinstance(provider, LocalProvider) and isinstance(provider.launcher, _ON_ONE_NODE)


def _address(executor: Any, run: Options) -> Callable[[], str | None]:
    """Return a function that finds the address of the driver; None if workers try all addresses."""
    interface = run.interface
    if interface is not None:
        return lambda: address_of(interface)
    return lambda: "127.0.0.1" if _is_here(executor.provider) else executor.address


def _provider_like(own: Any, scheduler: Scheduler | None) -> Callable[..., Any]:
    """Return a function that makes a provider like the user's ``own``, with blocks as we start."""

    def provider(**block: Any) -> Any:
        made = copy.deepcopy(own)
        block["worker_init"] += "\n"
        vars(made).update({name: value for name, value in block.items() if hasattr(made, name)})
        if scheduler is not None:
            lines = (made.scheduler_options.rstrip("\n"), NO_RERUN[scheduler], "")
            made.scheduler_options = "\n".join(lines).lstrip("\n")
        if scheduler == "lsf":
            # Parsl wrote the number of nodes, or of their slots, when the file was loaded.
            size = made.nodes_per_block * (1 if made.request_by_nodes else made.cores_per_node)
            made.scheduler_options = re.sub(
                r"(?m)^(#BSUB -n(nodes)?) \d+$", rf"\1 {size}", made.scheduler_options
            )
        if isinstance(made.launcher, JsrunLauncher):
            # Without options jsrun gives each agent one core.
            made.launcher.overrides = made.launcher.overrides or JSRUN
        if isinstance(made.launcher, SrunLauncher):
            # One agent on each node with all of its cores; the user's options come last, and win.
            ours = srun_options(getattr(made, "cores_per_node", None), 0)
            made.launcher.overrides = f"{ours} {made.launcher.overrides}".strip()
        return made

    return provider
