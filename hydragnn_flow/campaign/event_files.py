"""TensorBoard's event files of a run: curves of each trial and member from the ledger.

The driver writes one file for each segment that ended well, once the segment is in the ledger;
trainers are not involved. The content of a file follows from the ledger alone, and a file exists
completely or not at all. So a starting driver adds missing ones, and no point is written twice.
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
"""Folder of the run directory to open in TensorBoard."""
_Name = tuple[Kind, int]
"""Kind and number of a trial or member."""


class EventFile(NamedTuple):
    """File to be written."""

    path: Path
    content: bytes


class EventFiles:
    """Event files of a run.

    Parameters
    ----------
    directory
        Run directory of the campaign.
    config
        Configuration of the run.
    """

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self._directory, self._config = directory, config
        self._folder = directory.path / FOLDER
        self._search = self._folder / _file_name(0, 0.0)
        self._number = Counter[_Name]()

    def restore(self) -> None:
        """Write files that the folder lacks; delete those whose segment is not in the ledger.

        Segments of an ensemble that was set aside are no longer in the ledger.
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
            with suppress(OSError):  # the folder is not empty
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
        """List the files to be written for segments that have just ended.

        Parameters
        ----------
        results
            Results of the segments, which are in the ledger.
        trials
            Results of all segments of their trials so far, in the order in which they ended.
        """
        files = []
        for result in _good(results):
            is_first = not self._number[result.kind, result.number]
            path = self._next_path(result)
            of_trial = trials[result.number] if result.kind == "trial" else ()
            files.append(EventFile(path, self._content(result, of_trial, is_first)))
        return files

    def _next_path(self, result: SegmentResult) -> Path:
        """Path of a segment's file: TensorBoard reads a folder in the order of names, once.

        The time distinguishes members with the same number in two ensembles.
        """
        name = result.kind, result.number
        self._number[name] += 1
        folder = self._folder / f"{result.kind}-{result.number}"
        return folder / _file_name(self._number[name], result.ended)

    def _about_search(self) -> bytes:
        """Content for the tab HPARAMS: hyper-parameters and objectives of the search."""
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
        """Yield tags and values known at the end of a segment."""
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
    """Filter segments whose epochs count: those of any other segment are trained again."""
    return (r for r in results if r.status == "ok" and r.best_val_error is not None)


def _objective(name: str) -> str:
    return f"objective/{name}"


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _file_name(number: int, time: float) -> str:
    return f"events.out.tfevents.{number:010d}.{round(1e3 * time)}"


def write(file: EventFile) -> None:
    """Write a file completely: first under a temporary name that TensorBoard ignores.

    A file that a power failure left empty counts as missing.
    """
    path = file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".next")
    temporary.write_bytes(file.content)
    temporary.replace(path)


def _encoded(events: Sequence[tuple[float, int, Summary]]) -> bytes:
    """Encode an event file from (Unix time [s], epoch, summary)."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    records = RecordWriter(file)
    records.write(Event(wall_time=events[0][0], file_version="brain.Event:2").SerializeToString())
    for when, epoch, summary in events:
        records.write(Event(wall_time=when, step=epoch, summary=summary).SerializeToString())
    return file.getvalue()
