"""Attempts at a segment (sendings of one job): the checkpoint they resume from, and write."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import is_there, passing, patiently, sweep
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoints.checkpoint import (
    KEY,
    PATTERN,
    REMEDY,
    SECONDS_TO_RECOVER,
    Damaged,
    checkpoints,
    checksum,
    folder_of,
    furthest,
    load_checkpoint,
    new_folder,
    part_file,
    read_alone,
    remove_checkpoint,
    remove_parts,
    save_checkpoint,
    sweep_parts,
)
from hydragnn_flow.training.distributed import World

# Longest time to write a checkpoint [s], with a margin for clocks that differ by minutes.
_SECONDS_TO_WRITE = 3600.0
# How often ranks retry to find a checkpoint that all of them read in the same state.
_SECONDS_BETWEEN_LOOKS = 1.0
# Severity of faults on a rank.
_AWAY, _UNREADABLE, _DAMAGED = 0.5, 1.0, 2.0

Found = tuple[Path, dict[str, Any]]
Read = Callable[[Path], dict[str, Any]]


# Keys of `Training` that do not change what is trained. A retry after lack of memory has more
# micro-batches, and every parallel strategy can continue the checkpoint of another.
_AS_WELL = {"accumulation_steps", "ddp", "sharding", "task_parallel"}


class Sending:
    """Attempt at a segment (one sending of a job), which reads and writes its checkpoints.

    Parameters
    ----------
    spec
        The segment as the driver sent it.
    """

    def __init__(self, spec: SegmentSpec) -> None:
        self._spec = spec
        self._superseded: list[Path] = []
        self.checkpoint: Path | None = None
        """Latest checkpoint of this training; None if nothing has been trained."""
        self.checksum: int | None = None
        """CRC-32 of the latest checkpoint; None if another attempt wrote it, and may yet replace
        it."""
        self.passed_over: dict[Path, str] = {}
        """Unusable checkpoint -> reason why this attempt did not resume from it."""

    def begin(
        self, world: World, device: torch.device, *, lazily: bool = False
    ) -> dict[str, Any] | None:
        """Return the content of the checkpoint to resume this attempt from; None if there is none.

        It is the latest one of this training, or else the trial's checkpoint that a member starts
        from. This is a collective call that returns the same checkpoint on every rank.

        Parameters
        ----------
        world, device
            Rank and number of ranks, and the device of collectives.
        lazily
            True to leave tensors in their files until they are accessed, as in
            :func:`.load_checkpoint`.

        Raises
        ------
        InputError
            If a rank cannot read a checkpoint for another reason than damage; damaged ones are
            skipped.
        """
        spec, alike = self._spec, partial(self._seen_alike, world, device, lazily)
        found = None
        start = spec.start
        if start.begin_with or start.may_have_begun:
            found = alike(spec.folder, "" if start.may_have_begun else start.begin_with)
        if found is not None:
            self.checkpoint = found[0]
        elif start.trial_checkpoint is not None:
            file = Path(start.trial_checkpoint)
            found = alike(file.parent, file.name)
        return None if found is None else found[1]

    def write(self, state: dict[str, Any]) -> None:
        """Write ``state`` to the checkpoint file of this attempt, then delete older checkpoints.

        Raises
        ------
        OSError
            If the file cannot be written; see :func:`.save_checkpoint`.
        """
        file = self._spec.checkpoint
        before = None
        if self.checkpoint is not None:
            with suppress(OSError):
                before = folder_of(file)
        if self.checkpoint is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self.checksum = save_checkpoint(file, {**state, **_identity(self._spec)})
        with suppress(OSError):  # a leftover file is harmless
            remove_parts(before)
            for superseded in self._superseded:
                if superseded != file:
                    remove_checkpoint(superseded)
            if self._spec.start.may_have_begun and self.checkpoint != file:
                # Killed attempts leave files with other names; attempts still write the young ones.
                sweep(file.with_name(PATTERN), _SECONDS_TO_WRITE)
                sweep_parts(file.parent, _SECONDS_TO_WRITE)
        self._superseded, self.checkpoint = [], file

    def rewrite(self, changes: dict[str, Any]) -> None:
        """Write the latest checkpoint again, with the keys in ``changes`` added or replaced."""
        assert self.checkpoint is not None  # something was
        self.write(read_alone(self.checkpoint) | changes)

    def write_parts(
        self,
        parts: Mapping[int, Mapping[str, Any]],
        number: int,
        world: World,
        device: torch.device,
    ) -> dict[str, Any]:
        """Write this rank's shards (files beside the checkpoint file) of a checkpoint (collective).

        Parameters
        ----------
        parts
            Content of each shard that this rank writes, by index of the shard.
        number
            Total number of shards, over all ranks.
        world, device
            Rank and number of ranks, and the device of collectives.

        Returns
        -------
        dict
            Entries to add to the checkpoint file, which make it refer to the shards.

        Raises
        ------
        OSError
            If a shard cannot be written; see :func:`.save_checkpoint`.
        """
        name = world.told(new_folder(self._spec.checkpoint) if world.is_first else "", device)
        folder = self._spec.folder / name
        facts = torch.zeros(number, 2, dtype=torch.float64, device=device)
        for part, content in parts.items():
            file = part_file(folder, part)
            patiently(
                partial(folder.mkdir, parents=True, exist_ok=True), seconds=SECONDS_TO_RECOVER
            )
            save_checkpoint(file, dict(content))
            facts[part, 0] = patiently(file.stat, seconds=SECONDS_TO_RECOVER).st_size
            facts[part, 1] = patiently(partial(checksum, file), seconds=SECONDS_TO_RECOVER)
        files = [[int(size), int(crc)] for size, crc in world.sum(facts).tolist()]
        return {KEY: {"folder": name, "files": files}}

    def _read(self, path: Path, **how: Any) -> dict[str, Any]:
        try:
            state = load_checkpoint(path, remedy=REMEDY, known=self._spec.start.checksums, **how)
            if path.parent == self._spec.folder and not self._is_ours(state):
                raise Damaged(f"{path}: is of another training; {REMEDY}")
        except Damaged as error:
            self.passed_over[path] = str(error).removesuffix(REMEDY) + "it is passed over"
            raise Damaged(self.passed_over[path]) from error
        return state

    def _found(self, folder: Path, name: str, read: Read) -> Found | None:
        """Return the checkpoint ``name`` of a folder; if gone or damaged, the furthest there.

        The furthest checkpoint is the one with the most training. The result is None if there is
        no usable checkpoint; ``name`` is empty if none is preferred.
        """
        known = folder / name
        # It may be gone because an attempt that was wrongly taken for lost has replaced it.
        is_there_still = name and known not in self.passed_over and is_there(known)
        files = [known] if is_there_still else checkpoints(folder)
        if folder == self._spec.folder:
            self._superseded = files
        try:
            found = furthest([file for file in files if file not in self.passed_over], read)
        except Damaged:
            return self._found(folder, name, read)  # another may be there by now
        if found is None and folder != self._spec.folder and not self.passed_over:
            return known, read(known)
        return found

    def _seen_alike(
        self, world: World, device: torch.device, lazily: bool, folder: Path, name: str
    ) -> Found | None:
        """Return the checkpoint that the first rank finds and all ranks read in the same state.

        This is a collective call; ``folder`` and ``name`` are those of :meth:`_found`. An attempt
        that was wrongly taken for lost may replace the file while ranks read it.
        """
        read = partial(self._read, share=(world.rank, world.size), lazily=lazily)
        find = partial(self._found, folder, name, read)
        if world.size == 1:
            return find()
        looks = 0
        while True:
            looks += 1
            found, fault, weight = None, "", 0.0
            try:
                found = find() if world.is_first else None
            except (InputError, OSError) as error:
                fault, weight = _said(error)
            told = world.told(found[0].name if found else "", device)
            if told and not world.is_first:
                try:
                    found = folder / told, read(folder / told)
                except (InputError, OSError) as error:
                    fault, weight = _said(error)
            moment = _moment(found[1]) if found else ""
            differs = moment != world.told(moment, device)
            marks = torch.zeros(world.size, 2, device=device)
            marks[world.rank] = torch.tensor([weight, float(differs)])
            faults, others = world.sum(marks).cpu().unbind(1)
            if not (faults.any() or others.any()):
                return found
            if looks < 4:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            elif faults.any():
                fault = world.told(fault, device, int(faults.argmax()))
                if not told or faults.max() < _DAMAGED:
                    is_away = faults.max() <= _AWAY
                    raise InputError(fault) from OSError(errno.EIO, fault) if is_away else None
                self.passed_over[folder / told], looks = fault, 0
            else:
                raise InputError(
                    f"{folder / told}: another process goes on replacing it; end that process"
                )

    def _is_ours(self, state: dict[str, Any]) -> bool:
        """Return whether a checkpoint belongs to this training.

        A process of an earlier driver may write late, after its trial's number was reused.
        """
        mine = _identity(self._spec)
        return all(_plain(state.get(key, value)) == _plain(value) for key, value in mine.items())


def _said(error: Exception) -> tuple[str, float]:
    said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    other = _UNREADABLE if passing(error) is None else _AWAY
    return said, _DAMAGED if isinstance(error, Damaged) else other


def _moment(state: Mapping[str, Any]) -> str:
    """Return a fingerprint of a training's state: progress, and which splits are predicted."""
    progress = state["progress"]
    return f"{progress['epoch']} {progress['step']} {sorted(state['predicted'])}"


def _identity(spec: SegmentSpec) -> dict[str, Any]:
    return {"network": spec.network.to_json(), "seed": spec.seed}


def _plain(value: Any) -> Any:
    """Return a network's configuration without keys that may differ between attempts.

    Any other value is returned as it is.
    """
    if not isinstance(value, dict):
        return value
    training = {k: v for k, v in value.get("Training", {}).items() if k not in _AS_WELL}
    return {**value, "Training": training}
