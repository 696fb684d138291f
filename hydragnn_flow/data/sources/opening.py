"""Opening of a configuration's sources, joined if they are several, and their fingerprint."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.sources import BRANCH, WEIGHT
from hydragnn_flow.data.sources.base import Chunk, Record, Source
from hydragnn_flow.data.store.integrity import checksum
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

_CONTENT_UP_TO = 1 << 30
"""Largest size of all files together whose content is part of the fingerprint [bytes]."""


def open_source(config: DataConfig, seed: int) -> Source:
    """Return the reader of a configuration's data sets, without opening a file.

    Parameters
    ----------
    config
        Configuration of the data sets, and directory of their files.
    seed
        Seed of the run, for structures that are generated.

    Raises
    ------
    InputError
        If the section contradicts itself, or the method `open` of a user's section fails.
    """
    opened: dict[str, Source] = {}
    for number, one in enumerate(config.data_sets):
        try:
            # Two data sets must not generate the same structures.
            opened[one.name] = one.source.open(config.folder, seed + number)
        except InputError:
            raise
        except Exception as error:  # a user's code may raise any exception
            raise InputError(
                f"data.source: {one.source.format} cannot be opened: "
                f"{' '.join(repr(error).split())}; correct its method open"
            ) from error
    if config.sources is None:
        (source,) = opened.values()
        return source
    weighted = any(getattr(one.source, "weight", None) for one in config.data_sets)
    return JoinedSources(opened, weighted)


def fingerprint(config: DataConfig) -> dict[str, Any]:
    """Compute a checksum of a configuration's data files, by which changes are noticed.

    Names, relative to the data's directory, and sizes always count. The content counts if all files
    together have 1 GiB or less; for larger input the times of the last change count instead,
    because reading terabytes at every start would cost more than it protects. Large input that is
    copied without its times therefore counts as other input.

    Returns
    -------
    dict
        Number of ``files``, their total ``bytes``, and ``crc32``; all 0 if no file is read.

    Raises
    ------
    InputError
        If a file is missing or cannot be read.
    """
    folder = config.path or Path()
    crc32 = 0
    try:
        sizes = {file: file.stat() for file in open_source(config, 0).files()}
        total = sum(found.st_size for found in sizes.values())
        for file, found in sizes.items():
            name = os.path.relpath(file, folder)
            by_time = found.st_mtime_ns if total > _CONTENT_UP_TO else 0
            crc32 = zlib.crc32(f"{name}\0{found.st_size}\0{by_time}\0".encode(), crc32)
            if total <= _CONTENT_UP_TO:
                crc32 = checksum(file, before=crc32)
    except OSError as error:
        # The source gives a better message: it knows the file's purpose and key.
        source = open_source(config, 0)
        next(source.read(source.chunks()[0]), None)
        raise InputError(
            f"{error.filename} cannot be read ({error.strerror}); add it, allow reading it, or "
            "leave out what needs it"
        ) from None
    return {"files": len(sizes), "bytes": total, "crc32": crc32}


class JoinedSources:
    """Reader of several data sets, which gives each structure the branch of its data set.

    A branch is the set of a network's output heads for one data set.

    Parameters
    ----------
    sources
        Reader of each data set by name, in the order of branch indices.
    weighted
        True if a data set has weights of its structures; those of the others get weight 1.
    """

    def __init__(self, sources: Mapping[str, Source], weighted: bool = False) -> None:
        self._usual = {WEIGHT: np.ones((1, 1), np.float32)} if weighted else {}
        self._names = list(sources)
        self._sources = list(sources.values())
        self._current = 0
        """Index of the data set that was read last."""
        self._seen: dict[str, str] = {}
        """Names of the node features, joined by commas, by name of the data set, as read so far."""

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the node features, the columns of ``x``, the same in every data set."""
        return self._sources[self._current].node_features

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """Targets (quantities to learn) by name, found in the structures read so far.

        Raises
        ------
        InputError
            If two data sets have different targets.
        """
        found = [dict(source.found_targets) for source in self._sources]
        known = [one for one in zip(self._names, found, strict=True) if one[1]]
        check_alike("targets", {name: describe(targets) for name, targets in known})
        return known[0][1] if known else {}

    @property
    def unlabelled(self) -> list[str]:
        """Reason, file and number of each structure that was left out for want of a label."""
        return [said for source in self._sources for said in getattr(source, "unlabelled", ())]

    def files(self) -> list[Path]:
        """Return every file that is read, data set after data set."""
        return [file for source in self._sources for file in source.files()]

    def chunks(self) -> list[Chunk]:
        """Return chunks (ranges of structures in a file) of all data sets, one after another.

        Structures of one role (split that they are meant for) are numbered on from one data set to
        the next. Those of all roles are, if data sets have different roles: a split may then have
        structures of several, and no two get the same number.
        """
        found: list[list[Chunk]] = []
        for number, source in enumerate(self._sources):
            with _naming(number, self._names[number]):
                found.append(source.chunks())
        are_alike = len({frozenset(chunk.role for chunk in here) for here in found}) == 1
        chunks: list[Chunk] = []
        before = Counter[str]()
        for number, here in enumerate(found):
            sizes = Counter[str]()
            for chunk in here:
                role = chunk.role if are_alike else ""
                first = chunk.first + before[role]
                chunks.append(replace(chunk, first=first, data_set=number))
                sizes[role] += chunk.stop - chunk.start
            before += sizes
        features = [", ".join(source.node_features) for source in self._sources]
        check_alike("node features", dict(zip(self._names, features, strict=True)))
        self.found_targets  # noqa: B018  # raises an error if they differ
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the structures of a chunk, with the index of their data set as branch index.

        A chunk is a range of structures in one file. A branch is the set of a network's output
        heads for one data set.
        """
        self._current = chunk.data_set
        branch = {BRANCH: np.array([[chunk.data_set]], dtype=np.int64)}
        with _naming(chunk.data_set, self._names[chunk.data_set]):
            for record in self._sources[chunk.data_set].read(chunk):
                # A file's own number belongs to another list.
                own = {} if record.nodes is None else record.nodes.keys
                yield replace(record, keys={**self._usual, **own, **record.keys, **branch})
        self._seen[self._names[chunk.data_set]] = ", ".join(self.node_features)
        check_alike("node features", self._seen)


@contextmanager
def _naming(number: int, data_set: str) -> Iterator[None]:
    """Context manager: in errors raised inside it, keys of the source get their full path.

    That is `data.sources.2.train` for `data.source.train` if the data set's index ``number`` is 2.
    The name ``data_set`` is added to the message.
    """
    try:
        yield
    except InputError as error:
        known = (re.compile(r"\bdata\.source\b(?!s)"), f"data.sources.{number}")
        said = [re.sub(*known, f"{one} (data set {data_set})") for one in error.args]
        raise type(error)(*said) from error.__cause__


def check_alike(what: str, of_each: Mapping[str, str]) -> None:
    """Raise InputError if a property differs between data sets, or between parts of a data set.

    ``what`` names the property. ``of_each`` has the property in words, by name of the data set or
    part.
    """
    first = next(iter(of_each), "")
    for name, said in of_each.items():
        if said != of_each[first]:
            raise InputError(
                f"data: the {what} of {name} are {said}, and those of {first} are "
                f"{of_each[first]}; make them alike"
            )


def describe(targets: Mapping[str, Target]) -> str:
    """Return a description of targets in words, for messages on differences between them."""
    return ", ".join(
        f"{name} ({target.words}"
        f"{'' if target.extensive is None else f', extensive: {target.extensive}'})"
        for name, target in sorted(targets.items())
    )
