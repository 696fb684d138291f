"""What a segment is asked to do, and what comes back: plain values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydragnn_flow.config.data import Mode

Kind = Literal["trial", "member"]
Status = Literal[
    "ok", "diverged", "out_of_memory", "killed", "lost", "refused", "interrupted", "error"
]
AGREED: tuple[Status, ...] = ("ok", "diverged", "interrupted")
"""Ends that all ranks come to after the same step. Any other leaves the rest waiting."""


@dataclass(frozen=True)
class SegmentSpec:
    """Train one trial or member up to an epoch.

    The segment starts from ``directory/checkpoint.pt`` where there is one and ends in it: at that
    epoch, or before where early stopping says so, where it is asked to stop, or at its deadline.
    """

    kind: Kind
    number: int
    directory: str
    """Folder of the trial or member; the only place the segment writes to."""
    store: str
    """Path of the GraphStore."""
    network: dict[str, Any]
    """HydraGNN's `NeuralNetwork` section."""
    until_epoch: int
    """Epochs trained in all when the segment ends."""
    rung: int
    seed: int
    start_from: str | None = None
    """Checkpoint that a member without one of its own begins with: that of its trial."""
    decay: tuple[int, int] | None = None
    """Epochs between which a member's learning rate falls, by default to nothing; those of a trial
    where not given."""
    after_epoch: int = 0
    """Epochs trained when the segment was planned; those after it are in its history."""
    run_directory: str = ""
    """Where the driver's token is kept."""
    token: str = ""
    """Identifies the driver that sent this segment; a newer driver's token ends it."""
    claim: str = ""
    """Identifies this sending of it; sent again, it carries another, which ends this one."""
    deadline: float | None = None
    """Unix time [s] by which the segment ends with a checkpoint; none where not given."""
    threads: int = 1
    mode: Mode = "memory"
    """How the store is read."""
    scratch: str | None = None
    """Fast local directory of the node, for a copy of the store."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return dict(vars(self))

    @property
    def folder(self) -> Path:
        """The trial's or member's folder."""
        return Path(self.directory)


@dataclass
class SegmentResult:
    """How a segment ended. One line of `segments.jsonl` carries these fields."""

    kind: Kind
    number: int
    rung: int
    from_epoch: int
    to_epoch: int
    """Epochs trained in all; fewer than asked for where early stopping ended the segment."""
    status: Status
    reason: str = ""
    from_step: int = 0
    """Steps of the epoch after ``from_epoch`` that an earlier segment had taken."""
    best_val_loss: float | None = None
    """Smallest validation loss so far; what a rung judges by."""
    best_epoch: int | None = None
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss] of each epoch of the segment."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Mean absolute errors on the validation split at the best epoch, in the data's units."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    """Training steps it took."""
    step_seconds: float = 0.0
    """Mean time of one, from batch to batch; the first, which starts much up, counts only where it
    is the only one."""
    peak_memory_gib: float = 0.0
    parts: int = 1
    """In which each rank computed its share of a step, one after the other."""
    joules: float | None = None
    """Energy of all ranks [J]: of what each one's counters saw, the segment's share; None where a
    rank has none."""
    spent_seconds: float = 0.0
    """What it took, before this segment, to get to the checkpoint it began with: seconds of each
    GCD, those of segments included that were lost and so have none in their records."""
    spent_joules: float = 0.0
    started: float = 0.0
    """Unix time [s]."""
    ended: float = 0.0
    node: str = ""
    gcds: list[str] = field(default_factory=list)
    """Of each rank; one on another node than the first rank's is named `node/gcd`."""
    bundle: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of the trial: dotted path into the network → value."""
    planned_epochs: int | None = None
    """Epochs the segment was to train."""
    predicted_seconds: float | None = None
    uncorrected_seconds: float | None = None
    """What the network alone said of the training steps, on all GCDs, before experience corrected
    it."""
    predicted_memory_gib: float | None = None
    uncorrected_memory_gib: float | None = None
    """What the network alone said, without a margin."""
    version: int = 2

    @property
    def places(self) -> list[tuple[str, str]]:
        """(node, GCD) of each rank."""
        split = [gcd.rpartition("/") for gcd in self.gcds]
        return [(node or self.node, gcd) for node, _, gcd in split]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return dict(vars(self))
