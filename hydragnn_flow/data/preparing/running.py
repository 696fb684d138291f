"""Execution of the unfinished tasks of a preparation, by workers or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_flow.data.preparing.tasks import finished_tasks, load_record, run_task

Progress = Callable[[str, int, int], None]
"""Callback with the kind of work, the number done, and the total number."""

Workers = Callable[[Mapping[int, Mapping[str, Any]]], Iterator[int]]
"""Function that runs numbered tasks with `run_task` in workers, yielding each as it ends."""


def run_tasks(
    what: str,
    requests: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    show: Progress,
    workers: Workers | None,
) -> list[dict[str, Any]]:
    """Run the tasks that are not finished yet, and return the records of all, in order."""
    directories = [Path(request["directory"]) for request in requests]
    there = finished_tasks(directories[0].parent)
    unfinished = {n: r for n, r in enumerate(requests) if directories[n].name not in there}
    finished = sum(size for n, size in enumerate(sizes) if n not in unfinished)

    show(what, finished, sum(sizes))
    for number in (workers or _here)(unfinished):
        finished += sizes[number]
        show(what, finished, sum(sizes))
    return [load_record(directory) for directory in directories]


def _here(requests: Mapping[int, Mapping[str, Any]]) -> Iterator[int]:
    for number, request in requests.items():
        run_task(request)
        yield number
