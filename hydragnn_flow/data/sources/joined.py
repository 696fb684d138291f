"""Several data sets joined to one source, each structure with the number of its branch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data.sources.base import Chunk, ReadyGraph, Record, Source
from hydragnn_flow.data.sources.network_keys import add_keys
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError


class JoinedSources:
    """Structures of several data sets, concatenated.

    Parameters
    ----------
    sources
        Reader of each data set by name, in the order of branch numbers.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._names = list(sources)
        self._sources = list(sources.values())

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the columns of ``x``, the same in every data set."""
        return self._sources[0].node_features

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """Targets in the records read so far.

        Raises
        ------
        InputError
            If two data sets have different targets.
        """
        first, found = "", dict[str, Target]()
        for name, source in zip(self._names, self._sources, strict=True):
            here = dict(source.found_targets)
            if here and found and here != found:
                raise InputError(different_targets(first, found, name, here))
            if here:
                first, found = name, here
        return found

    def files(self) -> list[Path]:
        """Return every file that is read."""
        return [file for source in self._sources for file in source.files()]

    def chunks(self) -> list[Chunk]:
        """Return chunks of all structures by data set, numbered consecutively for each role."""
        chunks: list[Chunk] = []
        before: dict[str, int] = {}
        for number, source in enumerate(self._sources):
            with naming(number, self._names[number]):
                here = source.chunks()
            chunks += [
                replace(chunk, first=chunk.first + before.get(chunk.role, 0), data_set=number)
                for chunk in here
            ]
            for chunk in here:
                size = chunk.stop - chunk.start
                before[chunk.role] = before.get(chunk.role, 0) + size
        self._check_features()
        self.found_targets  # noqa: B018  # raises an error if they differ
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the structures of a chunk, each with the number of its branch."""
        keys = {BRANCH: np.array([[chunk.data_set]], dtype=np.int64)}
        records = self._sources[chunk.data_set].read(chunk)
        while True:
            with naming(chunk.data_set, self._names[chunk.data_set]):
                record = next(records, None)
            if record is None:
                return
            if isinstance(record, ReadyGraph):
                if BRANCH in record.data:  # a file's own number belongs to another list
                    del record.data[BRANCH]
                add_keys(record.data, keys)
                yield record
            else:
                others = {key: value for key, value in record.keys.items() if key != BRANCH}
                yield replace(record, keys={**others, **keys})

    def _check_features(self) -> None:
        first, *others = zip(self._names, self._sources, strict=True)
        for name, source in others:
            if list(source.node_features) != list(self.node_features):
                raise InputError(
                    f"data.sources: the node features of {name} are "
                    f"{', '.join(source.node_features)}, and those of {first[0]} "
                    f"{', '.join(self.node_features)}; give all data sets the same"
                )


@contextmanager
def naming(number: int, data_set: str) -> Iterator[None]:
    """Rename keys in errors of a data set's source to those in `data.sources`."""
    try:
        yield
    except InputError as error:
        said = re.sub(r"\bdata\.source\b(?!s)", f"data.sources.{number}", str(error))
        raise type(error)(f"{said} (data set {data_set})") from error.__cause__


def different_targets(
    first: str, found: Mapping[str, Target], second: str, other: Mapping[str, Target]
) -> str:
    """Return a message on the difference between the targets of two data sets."""
    if found.keys() != other.keys():
        target = min(found.keys() ^ other.keys())
        has, lacks = (first, second) if target in found else (second, first)
        return (
            f"data.sources: {has} has the target {target!r}, and {lacks} has not; name the same "
            f"targets in all data sets"
        )
    target = next(name for name in found if found[name] != other[name])
    ours, theirs = found[target], other[target]
    if ours.unit != theirs.unit:
        return (
            f"data.sources: {target} is in {ours.unit or 'unknown units'} in {first} and in "
            f"{theirs.unit or 'unknown units'} in {second}; convert one of them, or name its unit "
            f"in the targets of {second if not theirs.unit else first}"
        )
    return (
        f"data.sources: {target} has {ours.dim} components per {ours.level} in {first} and "
        f"{theirs.dim} per {theirs.level} in {second}; make them alike"
    )
