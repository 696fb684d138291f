"""Jobs: requests for a segment of training or a function call, and their results.

A trial or member is trained segment by segment. A :class:`SegmentSpec`, like a :class:`Call`, goes
from the driver through a Parsl worker to a trainer process. On the way back each layer adds what
only it knows: the trainer a :class:`TrainingOutcome`, the worker a :class:`Place`, the driver a
:class:`Forecast`. Together they form a :class:`SegmentResult`; that of a segment is a line of
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
"""Sampling of branches: ``proportional``, ``equal``, or a weight for each by name or number."""
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
"""Beginning of the reason of a segment that leaves a fused group and continues alone."""
AGREED: tuple[Status, ...] = ("ok", "diverged", "interrupted")
"""Statuses that all ranks reach after the same step. Any other leaves remaining ranks waiting."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Identifier of a segment."""

    kind: Kind
    number: int
    """Number of the trial or member."""
    rung: int


@dataclass(frozen=True, kw_only=True)
class JobSpec(Segment):
    """Request to a trainer process."""

    rung: int = 0
    directory: str
    """Folder for the files of the job, its `log` included; empty if it has none."""
    run_directory: str = ""
    """Directory with the file of the driver's token."""
    token: str = ""
    """Token of the driver that sent this job; a newer driver's token ends it."""
    attempt: str = ""
    """Identifier of this attempt at the job."""
    site_gcds: int = 1
    """Number of GCDs of the site, whose processes share a file system."""
    deadline: float | None = None
    """Time by which the job ends, a segment with a checkpoint, by the node's monotonic clock [s];
    None for no limit."""

    @property
    def folder(self) -> Path:
        """Folder of the job."""
        return Path(self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; inverse of :func:`read_job`."""
        return vars(self)


@dataclass(frozen=True, kw_only=True)
class Call(JobSpec):
    """Request to call a function, in a process that has torch imported.

    Like every job, it may be repeated after it has ended. So it writes its files completely or not
    at all, and checks first whether they exist.
    """

    function: str
    """Name of the function, `module:function`."""
    argument: Mapping[str, Any]
    """Argument as JSON values. A dict returned by the function becomes the outcome's ``answer``."""
    what: str = ""
    """Subject of the call, for messages."""

    def __str__(self) -> str:
        return self.what or f"{self.kind} {self.number}"


@dataclass(frozen=True, kw_only=True)
class SegmentSpec(JobSpec):
    """Request to train one trial or member up to an epoch.

    It starts from the checkpoint of an earlier segment if there is one. It writes one of its own at
    that epoch, or earlier on early stopping, on a request to stop, or at its deadline. No two
    attempts write the same file, so an attempt that is wrongly taken for lost does no harm.
    """

    store: str
    """Path of the GraphStore."""
    network: NetworkConfig
    """Checked configuration of the network."""
    until_epoch: int
    """Total number of epochs trained when the segment ends."""
    seed: int
    start_from: str | None = None
    """Checkpoint of its trial, for a member without a checkpoint of its own."""
    weights: str = ""
    """File of initial weights for a trial or member without a checkpoint; empty for random ones."""
    frozen: tuple[str, ...] = ()
    """Names of parameters, or of modules that hold them, that are not trained."""
    begin_with: str = ""
    """Name of the checkpoint in the folder to start from, if the driver knows it."""
    may_have_begun: bool = True
    """True if earlier attempts may have left checkpoints unknown to the driver; the segment then
    starts from the one with the most progress."""
    decay: tuple[int, int] | None = None
    """Epochs between which a member's learning rate falls, by default to nothing; None for the
    schedule of a trial."""
    checksums: dict[str, int] = field(default_factory=dict)
    """Checksums of the checkpoints that the driver knows, by name."""
    after_epoch: int = 0
    """Number of epochs trained when the segment was planned; its history has later ones."""
    batches: int = 1
    """Number of batches in a step, each as large as in the network's `Training`, from the next
    epoch on; the learning rate follows."""
    bootstrap: bool = False
    """True to train on a resample of the training split, drawn by the seed."""
    budget: tuple[str, float] | None = None
    """Unit and size of the training that the network's `num_epoch` epochs divide, as ("steps",
    1000); None if each is a pass through the training split."""
    sampling: Sampling = "proportional"
    """Sampling of branches, as in `data.sampling`."""
    validation: tuple[int, int] | None = None
    """Size of the validation subset used after each epoch, and the seed that draws it; None for
    the whole split."""
    criterion: CriterionName = "mae"
    """Error by which epochs are compared."""
    trivial_errors: dict[str, float] = field(default_factory=dict)
    """Errors of a trivial predictor, by target: the units of the criterion; the trainer computes
    them if empty."""
    threads: int = 1
    mode: Mode = "memory"
    """Mode of reading the store."""
    scratch: str | None = None
    """Fast local directory of the node for a copy of the store."""
    profile_seconds: float = 0.0
    """Time to profile its steps [s], without training; 0 to train."""
    traced: bool = False
    """True to add a trace of some steps to the profile."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; inverse of :func:`read_job`."""
        return {**vars(self), "network": self.network.to_json()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SegmentSpec:
        """Read a segment from its JSON values.

        Raises
        ------
        InputError
            If the network is invalid.
        """
        source = f"{values['kind']} {values['number']}"
        known = {"network": load_network(values["network"], source)}
        return cls(**{**values, **known, "frozen": tuple(values.get("frozen", ()))})

    @property
    def checkpoint(self) -> Path:
        """File that only this attempt at the segment writes."""
        return self.folder / (f"checkpoint-{self.attempt}.pt" if self.attempt else "checkpoint.pt")

    @property
    def trace(self) -> Path:
        """Chrome trace of this attempt at a profile."""
        return self.folder / f"trace-{self.attempt}.json"


def read_job(values: Mapping[str, Any]) -> Call | SegmentSpec:
    """Read a job from its JSON values.

    Raises
    ------
    InputError
        If the network of a segment is invalid.
    """
    return Call(**values) if "function" in values else SegmentSpec.from_dict(values)


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Result of the training of a segment, as far as its trainer knows it."""

    from_epoch: int = 0
    to_epoch: int = 0
    """Total number of epochs trained; less than requested after early stopping."""
    status: Status
    reason: str = ""
    from_step: int = 0
    """Number of steps of the epoch after ``from_epoch`` that an earlier segment had taken."""
    best_val_error: float | None = None
    """Smallest criterion so far, for a member since it left its trial; rungs compare it."""
    best_val_loss: float | None = None
    """Validation loss of the same weights."""
    best_epoch: int | None = None
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of each epoch of the segment."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Errors of the same weights on the validation split, in the data's units."""
    checkpoint: str = ""
    """Name of its last checkpoint in the folder; empty if it wrote none."""
    checksum: int | None = None
    """CRC-32 at the end of that file."""
    passed_over: str = ""
    """Checkpoints from which it should have started, and why it did not."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    """Number of training steps."""
    step_seconds: float = 0.0
    """Mean time of a step, from batch to batch [s]. The first step includes warm-up and counts only
    if it is the only one."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a step over all ranks, in the last epoch trained."""
    learning_rate: float = 0.0
    """Largest learning rate in that epoch, before a schedule lowers it."""
    steady_steps: int = 0
    """Number of steps after the first five, from which the speed is computed."""
    steady_graphs: int = 0
    """Number of graphs in these steps on all ranks."""
    steady_seconds: float = 0.0
    """Time of these steps, without validation and checkpoints [s]."""
    steady_joules: float | None = None
    """Energy of these steps on all ranks [J]; None if a rank has no counter."""
    peak_memory_gib: float = 0.0
    joules: float | None = None
    """Energy of the segment on all ranks [J]; None if a rank has no counter."""
    spent_seconds: float = 0.0
    """Time of each GCD that led to the initial checkpoint [s], including the work of lost segments,
    which have no ``seconds``."""
    spent_joules: float = 0.0
    fused: int = 1
    """Number of segments in its fused group, itself included. Its times and energy are its share of
    the group's; its peak memory is that of the group."""
    started: float = 0.0
    """Unix time of the start [s]."""
    ended: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    """Dict returned by a called function, or the profile of a segment's steps."""

    @classmethod
    def cut_short(cls, status: Status, reason: str, began: float | None = None) -> TrainingOutcome:
        """Make the outcome of a segment that ends now and whose trainer cannot say more.

        Parameters
        ----------
        status, reason
            Status of the segment, and the reason for it.
        began
            Start of the segment by `time.perf_counter` [s], since a wall clock may be set; by
            default now.
        """
        now, seconds = time.time(), 0.0 if began is None else time.perf_counter() - began
        return cls(status=status, reason=reason, started=now - seconds, ended=now, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Node and GCDs of a segment, as far as its worker knows them."""

    node: str = ""
    gcds: list[str] = field(default_factory=list)
    """Name of each rank's GCD; on another node than the first rank's it is `node/gcd`."""

    @property
    def places(self) -> list[tuple[str, str]]:
        """(node, GCD) of each rank."""
        split = [gcd.rpartition("/") for gcd in self.gcds]
        return [(node or self.node, gcd) for node, _, gcd in split]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Plan and cost estimate of a segment, made by the driver."""

    together: float = 1.0
    """Mean number of segments on its GCD while it ran, itself included."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the trial by dotted path into the network."""
    accumulation_steps: int = 1
    """Number of micro-batches into which each rank divided its graphs of a step."""
    batches: int = 1
    """Number of batches in a step, as in :class:`SegmentSpec`."""
    planned_epochs: int | None = None
    """Number of epochs that the segment was to train."""
    predicted_seconds: float | None = None
    """Predicted time on each of its GCDs, start and validation included [s]."""
    predicted_low: float | None = None
    """5th percentile of that time [s]."""
    predicted_high: float | None = None
    """95th percentile of that time [s]."""
    busy: float | None = None
    """Predicted fraction of the time that its GCD computes."""
    step_work: list[float] = field(default_factory=list)
    """Counted work of a training step: operations, bytes, launches of a GCD, peak memory of a GCD
    and memory of the weights [B]."""
    waited_seconds: float | None = None
    """Time between ready to run and launch [s]."""
    away_seconds: float | None = None
    """Time between launch and the driver's notice of its end [s]."""
    uncorrected_seconds: float | None = None
    """Predicted time of the training steps on all GCDs, before corrections [s]."""
    predicted_memory_gib: float | None = None
    uncorrected_memory_gib: float | None = None
    """Predicted memory from the network alone, without a margin [GiB]."""


_NO_DETAILS: dict[str, Any] = {"history": [], "metrics": {}, "parameters": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentResult(Forecast, Place, TrainingOutcome, Segment):
    """Complete result of a segment, from trainer, worker and driver; a line of `segments.jsonl`."""

    version: int = VERSION

    @property
    def is_whole(self) -> bool:
        """True if it trained all planned epochs from the beginning of an epoch on."""
        epochs = self.to_epoch - self.from_epoch
        return self.status == "ok" and epochs == self.planned_epochs and not self.from_step

    @classmethod
    def of(
        cls, segment: Segment, outcome: TrainingOutcome, place: Place | None = None
    ) -> SegmentResult:
        """Compose the result of a segment; :meth:`expected` adds its forecast."""
        return cls(
            kind=segment.kind,
            number=segment.number,
            rung=segment.rung,
            **vars(outcome),
            **vars(place or Place()),
        )

    def expected(self, forecast: Forecast) -> SegmentResult:
        """Add the driver's forecast."""
        return replace(self, **vars(forecast))

    def drop_details(self) -> None:
        """Free the largest fields, which nobody needs of an ended trial."""
        for name, nothing in _NO_DETAILS.items():
            object.__setattr__(self, name, nothing)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of all fields of a segment."""
        names = (field.name for field in fields(self) if field.name != "answer")
        return {name: getattr(self, name) for name in names}


def trial_kwh(results: Iterable[SegmentResult]) -> float:
    """Total counted energy of the segments of trials [kWh]."""
    return sum((result.joules or 0.0) / 3.6e6 for result in results if result.kind == "trial")
