"""TensorBoard's event files of a run: what the ledger says of each trial and member, drawn.

The driver writes them, a file for each segment that ended well, when the segment is in the ledger.
Trainers know nothing of it. A file's content follows from the ledger alone, and it is there whole
or not at all; so a driver that begins looks which are missing, and no point is written twice.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydragnn_flow.campaign.objectives import TooShort, outcome_of
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import Kind, SegmentResult

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FOLDER = "tensorboard"
"""Folder of the run directory, to be given to TensorBoard."""
_Name = tuple[Kind, int]
"""Of a trial or member."""


class EventFile(NamedTuple):
    """A file that is to be written."""

    path: Path
    content: bytes


class EventFiles:
    """The event files of a run.

    Parameters
    ----------
    directory
        Of the run.
    config
        Of the run.
    """

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self._directory, self._config = directory, config
        self._folder = directory.path / FOLDER
        self._search = self._folder / _file_name(0, 0.0)
        self._number = Counter[_Name]()

    def restore(self) -> None:
        """Write the files that the ledger has and the folder lacks; delete those of no segment.

        Such are those of members that were set aside.
        """
        self._number.clear()
        there = {path for path in self._folder.glob("**/*tfevents*") if path.stat().st_size}
        known, lacking = {self._search}, set[_Name]()
        for result in _good(self._directory.results()):
            path = self._next_path(result)
            known.add(path)
            if path not in there:
                lacking.add((result.kind, result.number))
        for path in there - known:
            path.unlink()
            with suppress(OSError):  # it holds others
                path.parent.rmdir()
        if self._search not in there:
            write(EventFile(self._search, self._about_search()))
        for name in lacking:
            del self._number[name]
        before = defaultdict[int, list[SegmentResult]](list)
        for result in self._directory.results() if lacking else ():
            if (result.kind, result.number) not in lacking:
                continue
            if result.kind == "trial":
                before[result.number].append(result)
            for file in self.of([result], before):
                if file.path not in there:
                    write(file)

    def of(
        self, results: Sequence[SegmentResult], trials: Mapping[int, Sequence[SegmentResult]]
    ) -> list[EventFile]:
        """The files of segments that have just ended, which are yet to be written.

        Parameters
        ----------
        results
            Of the segments, which are in the ledger.
        trials
            All segments of their trials so far, in the order they ended.
        """
        files = []
        for result in _good(results):
            is_first = not self._number[result.kind, result.number]
            path = self._next_path(result)
            of_trial = trials[result.number] if result.kind == "trial" else ()
            files.append(EventFile(path, self._content(result, of_trial, is_first)))
        return files

    def _next_path(self, result: SegmentResult) -> Path:
        """TensorBoard reads the files of a folder in the order of their names, and never goes back.

        The time tells members apart that have one number in two ensembles.
        """
        name = result.kind, result.number
        self._number[name] += 1
        folder = self._folder / f"{result.kind}-{result.number}"
        return folder / _file_name(self._number[name], result.ended)

    def _about_search(self) -> bytes:
        """What the tab HPARAMS shows of each trial: its parameters, and its objectives."""
        parameters = {
            path: _plain(parameter.examples()[0])
            for path, parameter in self._config.search.space.items()
        }
        objectives = {_objective(name): 0.0 for name in self._config.search.objectives}
        from torch.utils.tensorboard.summary import hparams

        return _encoded([(0.0, 0, hparams(parameters, objectives)[0])])

    def _content(
        self, result: SegmentResult, of_trial: Sequence[SegmentResult], is_first: bool
    ) -> bytes:
        from torch.utils.tensorboard.summary import hparams, scalar

        events: list[tuple[float, int, Summary]] = []
        if is_first:
            plain = {path: _plain(value) for path, value in result.parameters.items()}
            events.append((result.started, 0, hparams(plain, {})[1]))
        each = (result.ended - result.started) / max(1, len(result.history))
        for number, (epoch, *values) in enumerate(result.history, start=1):
            when = result.started + number * each
            for tag, value in zip(_OF_AN_EPOCH, values, strict=True):
                events.append((when, int(epoch), scalar(tag, value)))
        for tag, value in self._at_the_end(result, of_trial):
            events.append((result.ended, result.to_epoch, scalar(tag, value)))
        return _encoded(events)

    def _at_the_end(
        self, result: SegmentResult, of_trial: Sequence[SegmentResult]
    ) -> Iterator[tuple[str, float]]:
        """What is known where a segment ends: tags and values."""
        yield "learning_rate", result.learning_rate
        for name, error in sorted(result.metrics.items()):
            yield f"validation/{name}", error
        if of_trial:
            search = self._config.search
            with suppress(InputError, TooShort):  # not measured, so the trial has no objectives
                values = outcome_of(search, of_trial).objectives
                yield from zip(map(_objective, search.objectives), values, strict=True)


_OF_AN_EPOCH = ("loss/training", "loss/validation", "criterion")


def _good(results: Iterable[SegmentResult]) -> Iterator[SegmentResult]:
    """Those whose epochs count: of any other segment they are trained again."""
    return (r for r in results if r.status == "ok" and r.best_val_error is not None)


def _objective(name: str) -> str:
    return f"objective/{name}"


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _file_name(number: int, time: float) -> str:
    return f"events.out.tfevents.{number:010d}.{round(1e3 * time)}"


def write(file: EventFile) -> None:
    """Put a file on disk, whole: under another name first, by which TensorBoard does not know it.

    A file that a loss of power has left empty is lacking, too.
    """
    path = file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".next")
    temporary.write_bytes(file.content)
    temporary.replace(path)


def _encoded(events: Sequence[tuple[float, int, Summary]]) -> bytes:
    """An event file of (Unix time [s], epoch, what there is to show)."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    records = RecordWriter(file)
    records.write(Event(wall_time=events[0][0], file_version="brain.Event:2").SerializeToString())
    for when, epoch, summary in events:
        records.write(Event(wall_time=when, step=epoch, summary=summary).SerializeToString())
    return file.getvalue()
