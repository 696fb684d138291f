"""Jobs: segments of a training and calls of a function; what one is asked to do, how it ended.

A trial or member is trained segment by segment. :class:`SegmentSpec`, as :class:`Call`, goes from
the driver through a Parsl worker to a trainer process. On the way back each layer adds what it
alone knows: the trainer a :class:`TrainingOutcome`, the worker a :class:`Place`, the driver a
:class:`Forecast`. Together they are a :class:`SegmentResult`, for a segment a line of
`segments.jsonl`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from hydragnn_flow.config.data import Mode
from hydragnn_flow.config.network import NetworkConfig, load_network
from hydragnn_flow.config.run import CriterionName

Kind = Literal["trial", "member", "preparation", "prediction", "profile", "check", "call"]
Sampling = str | Mapping[str, float]
"""``proportional``, ``equal``, or a weight for each branch by its name or number."""
Status = Literal[
    "ok",
    "diverged",
    "out_of_memory",
    "killed",
    "lost",
    "refused",
    "interrupted",
    "error",
    "wrong_input",
]
VERSION = 5
"""Version of a line of `segments.jsonl`."""
APART = "goes on separately: "
"""Beginning of the reason of a segment that was trained fused with others, and ends so as to go on
without them."""
AGREED: tuple[Status, ...] = ("ok", "diverged", "interrupted")
"""Ends that all ranks come to after the same step. Any other leaves the rest waiting."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Name of a segment."""

    kind: Kind
    number: int
    """Number of the trial or member."""
    rung: int


@dataclass(frozen=True, kw_only=True)
class JobSpec(Segment):
    """Request to a trainer process."""

    rung: int = 0
    directory: str
    """Folder for what the job writes, its `log` included; empty if it has none."""
    run_directory: str = ""
    """File of the driver's token."""
    token: str = ""
    """Identifies the driver that sent this job; a newer driver's token ends it."""
    attempt: str = ""
    """Identifies this sending of it."""
    site_gcds: int = 1
    """GCDs of the site, whose processes share its file system."""
    deadline: float | None = None
    """Time by the node's monotonic clock [s] by which the job ends, a segment with a checkpoint;
    none if not given."""

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return Path(self.directory)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for another process; :func:`read_job` reads it."""
        return vars(self)


@dataclass(frozen=True, kw_only=True)
class Call(JobSpec):
    """Request to call a function, in a process that has torch imported.

    It may be called again after it has ended, as every job may. So it commits what it writes whole
    or not at all, and looks first whether that is there.
    """

    function: str
    """Its name, `module:function`."""
    argument: Mapping[str, Any]
    """What it is called with, as JSON. A dict that it returns is the outcome's ``answer``."""
    what: str = ""
    """What the call is about, for errors."""

    def __str__(self) -> str:
        return self.what or f"{self.kind} {self.number}"


@dataclass(frozen=True, kw_only=True)
class SegmentSpec(JobSpec):
    """Request to train one trial or member up to an epoch.

    It begins with the checkpoint of an earlier segment if there is one, and ends in one of its own:
    at that epoch, or before where early stopping says so, where it is asked to stop, or at its
    deadline. No two sendings write the same file, so that one which is taken for lost, and is not,
    spoils nothing.
    """

    store: str
    """Path of the GraphStore."""
    network: NetworkConfig
    """The network, checked."""
    until_epoch: int
    """Epochs trained in all when the segment ends."""
    seed: int
    start_from: str | None = None
    """Checkpoint that a member without one of its own begins with: that of its trial."""
    weights: str = ""
    """File of trained weights that a trial or member with nothing else to begin with begins with;
    random ones if not given."""
    frozen: tuple[str, ...] = ()
    """Parameters, or modules that hold them, that are not trained."""
    begin_with: str = ""
    """Name, in the folder, of the checkpoint that it begins with, where the driver knows it."""
    may_have_begun: bool = True
    """Whether earlier sendings may have left checkpoints that the driver does not know; then it
    begins with the one that has got furthest."""
    decay: tuple[int, int] | None = None
    """Epochs between which a member's learning rate falls, by default to nothing; those of a trial
    if not given."""
    checksums: dict[str, int] = field(default_factory=dict)
    """Of the checkpoints that the driver knows, by name."""
    after_epoch: int = 0
    """Epochs trained when the segment was planned; those after it are in its history."""
    batches: int = 1
    """Batches in a step, as large as the network's `Training` says, from the next epoch that it
    begins; the learning rate follows."""
    bootstrap: bool = False
    """Whether it trains on a resample of the training split, drawn by its seed."""
    budget: tuple[str, float] | None = None
    """Unit and size of what the network's `num_epoch` epochs divide among themselves, as ("steps",
    1000); each is a pass through the training split if not given."""
    sampling: Sampling = "proportional"
    """How often graphs of each branch are drawn, as `data.sampling` has it."""
    validation: tuple[int, int] | None = None
    """Number of graphs of the validation split by which epochs are judged, and the seed that draws
    them; all if not given."""
    criterion: CriterionName = "mae"
    """Error by which its epochs are judged."""
    trivial_errors: dict[str, float] = field(default_factory=dict)
    """Errors of a trivial predictor, by target, in which the criterion is measured; the trainer
    works them out if not given."""
    threads: int = 1
    mode: Mode = "memory"
    """How the store is read."""
    scratch: str | None = None
    """Fast local directory of the node, for a copy of the store."""
    profile_seconds: float = 0.0
    """If not 0, its steps are profiled, for so long in each mode [s], and nothing is trained."""
    parts_only: bool = False
    """Whether the profile is of the parts of a step, without other ways to compare them with."""
    traced: bool = False
    """Whether the profile comes with a trace of some steps."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for another process; :func:`read_job` reads it."""
        return {**vars(self), "network": self.network.to_json()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SegmentSpec:
        """The segment of which these are the JSON values.

        Raises
        ------
        InputError
            If the network is none.
        """
        source = f"{values['kind']} {values['number']}"
        known = {"network": load_network(values["network"], source)}
        return cls(**{**values, **known, "frozen": tuple(values.get("frozen", ()))})

    @property
    def checkpoint(self) -> Path:
        """The file that this sending of the segment writes, and no other."""
        return self.folder / (f"checkpoint-{self.attempt}.pt" if self.attempt else "checkpoint.pt")

    @property
    def trace(self) -> Path:
        """The Chrome trace of this sending of a profile."""
        return self.folder / f"trace-{self.attempt}.json"


def read_job(values: Mapping[str, Any]) -> Call | SegmentSpec:
    """The job of which these are the JSON values.

    Raises
    ------
    InputError
        If the network of a segment is none.
    """
    return Call(**values) if "function" in values else SegmentSpec.from_dict(values)


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """How the training of a segment went, as its trainer knows."""

    from_epoch: int = 0
    to_epoch: int = 0
    """Epochs trained in all; fewer than asked for where early stopping ended the segment."""
    status: Status
    reason: str = ""
    from_step: int = 0
    """Steps of the epoch after ``from_epoch`` that an earlier segment had taken."""
    best_val_error: float | None = None
    """Smallest criterion so far, of a member since it left its trial; what a rung judges by."""
    best_val_loss: float | None = None
    """Validation loss of the same weights."""
    best_epoch: int | None = None
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of each epoch of the segment."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Errors of the same weights on the validation split, in the data's units."""
    checkpoint: str = ""
    """Name, in the folder, of the checkpoint in which it ended; empty if it wrote none."""
    checksum: int | None = None
    """CRC-32 at the end of this file."""
    passed_over: str = ""
    """Checkpoints that it should have begun with, and why it did not."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    """Training steps it took."""
    step_seconds: float = 0.0
    """Mean time of one, from batch to batch; the first, which starts much up, counts only where it
    is the only one."""
    graphs_per_step: float = 0.0
    """Mean number of graphs of a step over all ranks, in the last epoch that it trained in."""
    learning_rate: float = 0.0
    """The largest in that epoch, before a schedule lowers it."""
    steady_steps: int = 0
    """Steps after the first five, by which its speed is judged."""
    steady_graphs: int = 0
    """Graphs of these steps on all ranks."""
    steady_seconds: float = 0.0
    """Their time, without validation and checkpoints [s]."""
    steady_joules: float | None = None
    """Their energy on all ranks [J]; None if a rank has no counter."""
    peak_memory_gib: float = 0.0
    joules: float | None = None
    """The segment's energy on all ranks [J]; None if a rank has no counter."""
    spent_seconds: float = 0.0
    """Time of each GCD [s] that led to the checkpoint the segment began with, including the work of
    lost segments, which have no ``seconds``."""
    spent_joules: float = 0.0
    fused: int = 1
    """Segments that were trained fused with each other, itself included. Its times and its energy
    are its share of theirs, its peak of memory is that of all of them."""
    started: float = 0.0
    """Unix time [s]."""
    ended: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    """What a function that was called has returned, or the profile of a segment's steps."""

    @classmethod
    def cut_short(cls, status: Status, reason: str, began: float | None = None) -> TrainingOutcome:
        """Outcome of a segment whose trainer cannot tell more, ended now.

        Parameters
        ----------
        status, reason
            How it ended.
        began
            When it began, by `time.perf_counter` [s], as a wall clock may be set meanwhile; just
            now if not given.
        """
        now, seconds = time.time(), 0.0 if began is None else time.perf_counter() - began
        return cls(status=status, reason=reason, started=now - seconds, ended=now, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Node and GCDs of a segment, as its worker knows them."""

    node: str = ""
    gcds: list[str] = field(default_factory=list)
    """GCD of each rank; one on another node than the first rank's is named `node/gcd`."""

    @property
    def places(self) -> list[tuple[str, str]]:
        """(node, GCD) of each rank."""
        split = [gcd.rpartition("/") for gcd in self.gcds]
        return [(node or self.node, gcd) for node, _, gcd in split]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Plan and estimate of a segment by the driver."""

    together: float = 1.0
    """Mean number of segments on its GCD while it was there, itself included."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Values of the trial: dotted path into the network → value."""
    accumulation_steps: int = 1
    """Micro-batches into which each rank divided its graphs of a step."""
    batches: int = 1
    """Batches in a step, as :class:`SegmentSpec` has them."""
    planned_epochs: int | None = None
    """Epochs the segment was to train."""
    predicted_seconds: float | None = None
    """Time predicted for each of its GCDs, start and validation included [s]."""
    predicted_low: float | None = None
    """5th percentile of that time [s]."""
    predicted_high: float | None = None
    """95th percentile of that time [s]."""
    busy: float | None = None
    """Predicted fraction of the time in which its GCD computes."""
    step_work: list[float] = field(default_factory=list)
    """What was counted of a training step: operations, bytes, launches of a GCD, most memory of a
    GCD and the weights' [B]."""
    waited_seconds: float | None = None
    """Time between when it could have run and when it was sent [s]."""
    away_seconds: float | None = None
    """Time between when it was sent and when the driver knew its end [s]."""
    uncorrected_seconds: float | None = None
    """Time predicted for the training steps on all GCDs, before corrections [s]."""
    predicted_memory_gib: float | None = None
    uncorrected_memory_gib: float | None = None
    """Prediction from the network alone, without a margin."""


_NO_DETAILS: dict[str, Any] = {"history": [], "metrics": {}, "parameters": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentResult(Forecast, Place, TrainingOutcome, Segment):
    """How a segment ended, as trainer, worker and driver know. A line of `segments.jsonl`."""

    version: int = VERSION

    @property
    def is_whole(self) -> bool:
        """Whether it did all it was sent for, from the beginning of an epoch on."""
        epochs = self.to_epoch - self.from_epoch
        return self.status == "ok" and epochs == self.planned_epochs and not self.from_step

    @classmethod
    def of(
        cls, segment: Segment, outcome: TrainingOutcome, place: Place | None = None
    ) -> SegmentResult:
        """Compose the result of a segment; its forecast is added by :meth:`expected`."""
        return cls(
            kind=segment.kind,
            number=segment.number,
            rung=segment.rung,
            **vars(outcome),
            **vars(place or Place()),
        )

    def expected(self, forecast: Forecast) -> SegmentResult:
        """The result beside the driver's forecast."""
        return replace(self, **vars(forecast))

    def drop_details(self) -> None:
        """Forget what takes most of the memory, and nobody asks of a trial that has ended."""
        for name, nothing in _NO_DETAILS.items():
            object.__setattr__(self, name, nothing)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of all fields that a segment has."""
        names = (field.name for field in fields(self) if field.name != "answer")
        return {name: getattr(self, name) for name in names}


def trial_kwh(results: Iterable[SegmentResult]) -> float:
    """Energy that segments of trials have used, as far as it was counted [kWh]."""
    return sum((result.joules or 0.0) / 3.6e6 for result in results if result.kind == "trial")
