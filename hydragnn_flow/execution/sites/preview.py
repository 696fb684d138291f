"""Preview of the batch scripts of a site, word by word, without submitting anything."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from parsl import Config
from parsl.providers import LocalProvider

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.parsl_internals import SubmitException, cluster_provider, replaced_by
from hydragnn_flow.execution.pools import interchange
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.sites.batch import Executors

_ADDRESS = "ADDRESS"
_RUN_DIR = "RUN_DIR/parsl"


class Preview(NamedTuple):
    """Batch script and Parsl configuration that a site (machine) would use."""

    config: Config
    """Parsl's configuration."""
    command: str
    """Command that submits a Parsl block (one batch job)."""
    script: str
    """Text of the batch script."""
    note: str
    """Sentence about values that this host cannot know; empty if it knows all of them."""


def preview(site: Site) -> Preview:
    """Return the batch script of a site's blocks (batch jobs), and the command that submits it.

    Parameters
    ----------
    site
        Site to preview; this host need not belong to it.
    """
    directory, note = Path(_RUN_DIR), ""
    make: Callable[[], Config] = partial(site.parsl_config, directory)
    executors = site.parsl_config
    if isinstance(executors, Executors):
        try:
            address = executors.address() or _ADDRESS
        except InputError:
            address = _ADDRESS
        if address == _ADDRESS:
            note = f"{_ADDRESS} is the address of the host the campaign is started on"
        make = partial(executors.config, directory, address)  # packs no environment
    config = make()
    # A fresh configuration is used, since writing the script changes the executor.
    return Preview(config, *_block(make().executors[0]), note)


def replaced(own: Any, ours: Any) -> list[dict[str, str]]:
    """List the arguments of a user's own executor, and of its provider, that have other values.

    Parameters
    ----------
    own, ours
        Executor of the user's `parsl.Config`, and the one that is made from it.

    Returns
    -------
    list of dict
        Name, value in the user's file, and value here.
    """
    rows = [("interchange_launch_cmd", "interchange.py", f"python -m {interchange.__name__}")]
    for prefix, one, other in (("", own, ours), ("provider.", own.provider, ours.provider)):
        for name in signature(type(one)).parameters:
            before, after = (_words(getattr(each, name)) for each in (one, other))
            if name != "provider" and after not in (before, [_ADDRESS]):
                rows.append((prefix + name, *_differing(before, after)))
    return [dict(zip(("argument", "in the file", "here"), row, strict=True)) for row in rows]


def _words(value: Any) -> list[str]:
    return (type(value).__name__ if " at 0x" in repr(value) else str(value)).split()


def _differing(one: list[str], other: list[str]) -> tuple[str, str]:
    """Join the words of two texts, without those that both begin and end with."""
    first = _shared(one, other)
    last = _shared(one[first:][::-1], other[first:][::-1])
    return " ".join(one[first : len(one) - last]), " ".join(other[first : len(other) - last])


def _shared(one: list[str], other: list[str]) -> int:
    """Return the number of words with which both texts begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


def _block(executor: Any) -> tuple[str, str]:
    """Return the command and script with which an executor starts a block; change the executor."""
    # Values that Parsl sets when it starts an executor.
    executor.run_dir = f"{_RUN_DIR}/000"
    executor.cert_dir = f"{executor.logdir}/certificates"
    executor.logconf_path = None
    executor.worker_port = 54000
    executor.initialize_scaling()
    command = executor._get_launch_command("0")
    provider, name = executor.provider, f"parsl.{executor.label}.block-0"
    if isinstance(provider, LocalProvider):
        started = provider.launcher(command, 1, provider.nodes_per_block, _RUN_DIR)
        script = f"{provider.worker_init}\nexport JOBNAME={name}\n{started}"
        return "bash, on this host", script
    with tempfile.TemporaryDirectory() as folder:
        scripts = Path(folder, _RUN_DIR, "000", "submit_scripts")
        scripts.mkdir(parents=True)
        submitted = _submitted(provider, command, name, str(scripts))
        script = Path(shlex.split(submitted)[-1]).read_text(encoding="utf-8")
    return submitted.replace(f"{folder}/", ""), script.replace(f"{folder}/", "")


def _submitted(provider: Any, command: str, name: str, scripts: str) -> str:
    """Let Parsl write a block's batch script; return the command that would submit the script.

    Nothing is submitted, and the provider is changed.

    Parameters
    ----------
    provider
        Parsl provider of the block.
    command
        Command that the script runs, which starts the workers.
    name
        Name of the batch job.
    scripts
        Folder for the script.
    """
    given: list[str] = []

    def refuse(line: str, *_: Any) -> tuple[int, str, str]:
        given.append(line)
        return 1, "", ""

    provider.script_dir = scripts
    # Parsl's LSF provider calls the function of its module.
    with suppress(SubmitException), replaced_by({(cluster_provider, "execute_wait"): refuse}):
        provider.submit(command, 1, name)
    return given[-1]
