"""Sendings of a segment: the checkpoint that one begins with, and the file that it writes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.files import is_there, sweep
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoint import (
    PATTERN,
    checkpoints,
    furthest,
    load_checkpoint,
    save_checkpoint,
)
from hydragnn_flow.training.distributed import World

# No checkpoint takes as long to be written, clocks that differ by minutes included.
_SECONDS_TO_WRITE = 3600.0


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
        self.checkpoint: Path | None = None
        """The file that has what was trained so far; none if nothing was."""

    def begin(self, world: World, device: torch.device) -> dict[str, Any] | None:
        """What an earlier sending has left, with which this one begins; every rank calls this.

        Raises
        ------
        InputError
            If nothing of what was left can be read.
        """
        spec = self._spec
        if not (spec.begin_with or spec.may_have_begun):
            return None
        found = self._found() if world.is_first else None
        # One that was taken for lost may write another while the ranks look.
        name = world.told(found[0].name if found else "", device)
        if found is None and name:
            found = spec.folder / name, load_checkpoint(spec.folder / name)
        if found is None:
            return None
        self.checkpoint = found[0]
        return found[1]

    def write(self, state: dict[str, Any]) -> None:
        """Write the checkpoint of this sending, and take away those before it.

        Raises
        ------
        OSError
            As :func:`.save_checkpoint`.
        """
        file = self._spec.checkpoint
        if self.checkpoint is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(file, {**state, **_identity(self._spec)})
        with suppress(OSError):  # a file too many harms nobody
            for superseded in self._superseded:
                if superseded != file:
                    superseded.unlink(missing_ok=True)
            if self._spec.may_have_begun and self.checkpoint != file:
                # Sendings that were killed have names of their own; others may be writing theirs.
                sweep(file.with_name(PATTERN), _SECONDS_TO_WRITE)
        self._superseded, self.checkpoint = [], file

    def rewrite(self, changes: dict[str, Any]) -> None:
        """Change keys of what was trained so far."""
        assert self.checkpoint is not None  # something was
        self.write(load_checkpoint(self.checkpoint) | changes)

    def _found(self) -> tuple[Path, dict[str, Any]] | None:
        spec = self._spec
        known = spec.folder / spec.begin_with
        if not spec.may_have_begun and is_there(known):
            self._superseded = [known]
            return known, load_checkpoint(known)
        # Where one that is known is gone, a sending that was taken for lost has got further.
        self._superseded = checkpoints(spec.folder)
        return furthest(self._superseded, self._is_ours)

    def _is_ours(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint is of this training.

        What an earlier driver sent may write late, into the folder of another trial or member that
        got the number since.
        """
        mine = _identity(self._spec)
        return all(_plain(state.get(key, value)) == _plain(value) for key, value in mine.items())


def _identity(spec: SegmentSpec) -> dict[str, Any]:
    return {"network": spec.network.to_json(), "seed": spec.seed}


def _plain(value: Any) -> Any:
    """A network without its micro-batches, of which a segment that was too large gets more."""
    if not isinstance(value, dict):
        return value
    training = {k: v for k, v in value.get("Training", {}).items() if k != "accumulation_steps"}
    return {**value, "Training": training}
