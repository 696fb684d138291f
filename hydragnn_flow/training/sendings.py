"""Sendings of a segment: the checkpoint that one begins with, and the file that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import is_there, patiently, sweep
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoint import (
    IN_PARTS,
    PATTERN,
    SECONDS_TO_RECOVER,
    checkpoints,
    furthest,
    load_checkpoint,
    read_alone,
    save_checkpoint,
)
from hydragnn_flow.training.checkpoint_parts import (
    KEY,
    checksum,
    folder_of,
    new_folder,
    part_file,
    remove_checkpoint,
    remove_parts,
    sweep_parts,
)
from hydragnn_flow.training.distributed import World

# No checkpoint takes as long to be written, clocks that differ by minutes included.
_SECONDS_TO_WRITE = 3600.0
# Times that ranks look for a checkpoint which they all see alike.
_LOOKS = 4


# Keys of `Training` that do not change what is trained: a segment that was too large gets more
# micro-batches, and any strategy continues what another has trained.
_AS_WELL = {"accumulation_steps", "ddp", "sharding", "task_parallel"}


class Sending:
    """This sending of a segment, among those before it.

    Parameters
    ----------
    spec
        As it was sent.
    """

    def __init__(self, spec: SegmentSpec) -> None:
        self._spec = spec
        self._superseded: list[Path] = []
        self._read: Callable[[Path], dict[str, Any]] = load_checkpoint
        self.checkpoint: Path | None = None
        """The file that has what was trained so far; none if nothing was."""

    def begin(
        self, world: World, device: torch.device, *, lazily: bool = False
    ) -> dict[str, Any] | None:
        """What an earlier sending has left, with which this one begins; every rank calls this.

        Parameters
        ----------
        world, device
            This rank's place, and where it computes.
        lazily
            Leave tensors in their files, as :func:`.load_checkpoint` does.

        Raises
        ------
        InputError
            If nothing of what was left can be read.
        """
        spec = self._spec
        if not (spec.begin_with or spec.may_have_begun):
            return None
        self._read = partial(load_checkpoint, share=(world.rank, world.size), lazily=lazily)
        looks = 0
        while True:
            looks += 1
            found = self._found() if world.is_first else None
            name = world.told(found[0].name if found else "", device)
            if not name:
                return None
            error: Exception | None = None
            if found is None:
                try:
                    found = spec.folder / name, self._read(spec.folder / name)
                except (InputError, OSError) as caught:
                    error = caught
            mine = "" if found is None else _moment(found[1])
            differs = torch.tensor([float(mine != world.told(mine, device))], device=device)
            if found is not None and not float(world.sum(differs)):
                self.checkpoint, state = found
                return state
            # A sending that was taken for lost has written another while the ranks looked.
            if looks == _LOOKS:
                raise error or InputError(
                    f"{spec.folder / name}: something else goes on writing it; end that, and go on"
                )

    def write(self, state: dict[str, Any]) -> None:
        """Write the checkpoint of this sending, and take away those before it.

        Raises
        ------
        OSError
            As :func:`.save_checkpoint`.
        """
        file = self._spec.checkpoint
        before = None
        if self.checkpoint is not None:
            with suppress(OSError):
                before = folder_of(file)
        if self.checkpoint is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(file, {**state, **_identity(self._spec)})
        with suppress(OSError):  # a file too many harms nobody
            remove_parts(before)
            for superseded in self._superseded:
                if superseded != file:
                    remove_checkpoint(superseded)
            if self._spec.may_have_begun and self.checkpoint != file:
                # Sendings that were killed have names of their own; others may be writing theirs.
                sweep(file.with_name(PATTERN), _SECONDS_TO_WRITE)
                sweep_parts(file.parent, _SECONDS_TO_WRITE)
        self._superseded, self.checkpoint = [], file

    def rewrite(self, changes: dict[str, Any]) -> None:
        """Change keys of what was trained so far."""
        assert self.checkpoint is not None  # something was
        self.write(read_alone(self.checkpoint) | changes)

    def write_parts(
        self,
        parts: Mapping[int, Mapping[str, Any]],
        number: int,
        world: World,
        device: torch.device,
    ) -> dict[str, Any]:
        """Write what this rank holds of a network that is divided; all ranks call this.

        Parameters
        ----------
        parts
            Content of the parts that this rank writes, by their numbers.
        number
            Of parts that all ranks write.
        world, device
            The rank's place, and where it computes.

        Returns
        -------
        dict
            What the checkpoint, which makes the parts count, is to say of them.

        Raises
        ------
        OSError
            As :func:`.save_checkpoint`.
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
        return {"version": IN_PARTS, KEY: {"folder": name, "files": files}}

    def _found(self) -> tuple[Path, dict[str, Any]] | None:
        spec = self._spec
        known = spec.folder / spec.begin_with
        if not spec.may_have_begun and is_there(known):
            self._superseded = [known]
            return known, self._read(known)
        # Where one that is known is gone, a sending that was taken for lost has got further.
        self._superseded = checkpoints(spec.folder)
        return furthest(self._superseded, self._is_ours, self._read)

    def _is_ours(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint is of this training.

        What an earlier driver sent may write late, into the folder of another trial or member that
        got the number since.
        """
        mine = _identity(self._spec)
        return all(_plain(state.get(key, value)) == _plain(value) for key, value in mine.items())


def _moment(state: Mapping[str, Any]) -> str:
    """How far a training had got."""
    progress = state["progress"]
    return f"{progress['epoch']}.{progress['step']}"


def _identity(spec: SegmentSpec) -> dict[str, Any]:
    return {"network": spec.network.to_json(), "seed": spec.seed}


def _plain(value: Any) -> Any:
    """A network without what the next sending may have otherwise."""
    if not isinstance(value, dict):
        return value
    training = {k: v for k, v in value.get("Training", {}).items() if k not in _AS_WELL}
    return {**value, "Training": training}
