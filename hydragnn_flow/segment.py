"""Jobs: requests for a segment of training or a function call, and their results.

A trial or member is trained in segments; a segment is one stretch of its training, sent as one job.
A :class:`SegmentSpec`, like a :class:`Call`, goes from the driver through a Parsl worker to a
trainer process. On the way back each of the three adds what only it knows: the trainer a
:class:`TrainingOutcome`, the worker a :class:`Place`, the driver a :class:`Forecast`. Together they
form a :class:`SegmentResult`. The result of a segment becomes a line of the ledger,
`segments.jsonl`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from hydragnn_flow.config.data import Mode
from hydragnn_flow.config.network import NetworkConfig, load_network
from hydragnn_flow.config.run import CriterionName

Kind = Literal["trial", "member", "preparation", "prediction", "profile", "check", "call"]
Sampling = str | Mapping[str, float]
"""Frequency with which training draws graphs of each branch (data set): ``proportional`` to its
number of graphs, ``equal``, or a weight for each branch, by name or else by index."""
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
"""Version of the format of each line of `segments.jsonl`."""
AGREED: tuple[Status, ...] = ("ok", "diverged", "interrupted")
"""Statuses that all ranks (processes) of a segment reach after the same training step. A rank that
ends with another status leaves the other ranks waiting for it."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Identifier of a job: its kind, its trial or member, and the rung at which it ends.

    A rung is an epoch at which a search compares trials.
    """

    kind: Kind
    """Purpose of the job: to train a ``trial`` or ``member``, or another purpose."""
    number: int
    """Number of the trial or index of the member; for other kinds, an index of the job."""
    rung: int
    """Index of the rung at which a trial's segment ends, from 0."""


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Identity of the driver (main process of a campaign) that sent a job.

    The job is stopped once a newer driver has the run directory.
    """

    run_directory: str = ""
    """Path of the run directory, whose file `driver.json` holds the token of the newest driver; if
    empty, the job does not look for a newer driver."""
    token: str = ""
    """Token of the driver that sent the job."""
    site_gcds: int = 1
    """Number of GCDs of the site; the more there are, the more rarely each process accesses the
    shared file system."""


@dataclass(frozen=True, kw_only=True)
class JobSpec(Segment):
    """Job sent to a trainer process (segment of training or function call): the common fields."""

    rung: int = 0
    directory: str
    """Path of the folder for the job's files, such as `log`; empty if the job has no folder."""
    driver: Sender = Sender()
    attempt: str = ""
    """Identifier of this attempt at the job; a job that is sent again gets a new one."""
    deadline: float | None = None
    """Time on the node's monotonic clock by which the job has to end [s]; a segment writes its last
    checkpoint before. None for no limit."""

    @property
    def folder(self) -> Path:
        """Path of the folder for the job's files."""
        return Path(self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as values for JSON, from which :func:`read_job` makes the job again."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_plain)
        return values


def _plain(value: Any) -> Any:
    """Return a network, or one of numpy's numbers, as a value for JSON."""
    if isinstance(value, NetworkConfig):
        return value.to_json()
    if not hasattr(value, "item"):
        raise TypeError(f"a job holds {value!r}, which JSON has no type for")
    return value.item()


@dataclass(frozen=True, kw_only=True)
class Call(JobSpec):
    """Job that calls a function, in a process that has torch imported.

    A job may be sent again although it has ended. So the function must write each file completely
    or not at all, and first check whether its files exist.
    """

    function: str
    """Module and name of the function, as `package.module:name`."""
    argument: Mapping[str, Any]
    """The only argument of the function, a dict of JSON values. A dict that the function returns
    becomes ``answer`` of the :class:`TrainingOutcome`."""
    what: str = ""
    """Name of the call in messages; if empty, messages name the kind and number of the job."""

    def __str__(self) -> str:
        return self.what or f"{self.kind} {self.number}"


@dataclass(frozen=True, kw_only=True)
class StoreAccess:
    """GraphStore that a segment (stretch of training) trains on: its path, and how it is read."""

    path: str
    """Path of the GraphStore, visible to the nodes."""
    mode: Mode = "memory"
    """Access of training to the store: ``memory``, ``random`` or ``stream``, as in `data.mode`."""
    scratch: str | None = None
    """Fast local directory of the node for a copy of the store; None to make no copy."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Weights and checkpoints from which a segment (a stretch of training) starts."""

    weights: str = ""
    """Path of the file with initial weights, read if there is no checkpoint; empty for random
    weights."""
    frozen: tuple[str, ...] = ()
    """Names of parameters that are not trained, or of modules whose parameters are not trained."""
    trial_checkpoint: str | None = None
    """Path of the trial's checkpoint from which a member starts; None for a trial, or a member
    that is trained from scratch."""
    begin_with: str = ""
    """File name of the checkpoint in the job's folder to start from; empty if the driver knows
    none."""
    may_have_begun: bool = True
    """True if earlier attempts may have left checkpoints that the driver does not know; the segment
    then starts from the checkpoint with the most progress in its folder, and ignores
    ``begin_with``. False if there are no such checkpoints."""
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Expected CRC-32 checksum of each checkpoint that the driver knows, by file name."""


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Epochs that a segment (stretch of training) trains, and the graphs of each epoch and step."""

    until_epoch: int
    """Number of epochs trained when the segment ends, earlier segments included."""
    after_epoch: int = 0
    """Number of epochs that were trained when the segment was planned; ``history`` of its result
    has only later epochs."""
    decay: tuple[int, int] | None = None
    """First and last epoch of a member's learning-rate schedule; without `Training.Scheduler` the
    rate falls to zero between the two. None for the schedule of a trial."""
    batches: int = 1
    """Number of batches in a training step over all ranks, each batch as large as the network's
    `Training` says; the learning rate is adapted to this number. An epoch that has already begun
    keeps its own number."""
    bootstrap: bool = False
    """True to train on a bootstrap resample of the training split, drawn by the seed; False for the
    split itself."""
    budget: tuple[str, float] | None = None
    """Unit and amount of the training budget, such as ("steps", 1000), which the network's
    `num_epoch` epochs share equally; None if an epoch is a pass through the training split."""
    sampling: Sampling = "proportional"
    """Frequency with which graphs of each data set are drawn, as in `data.sampling`."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Settings of the validation after each epoch: its graphs, and the error to compare epochs."""

    subset: tuple[int, int] | None = None
    """Number of graphs of the validation split that are used, and the seed that draws them; None
    for the whole split."""
    criterion: CriterionName = "mae"
    """Error by which epochs are compared: ``mae`` or ``rmse``."""
    trivial_errors: Mapping[str, float] = field(default_factory=dict)
    """Error of a trivial predictor by name of the target, by which the model's error is divided; if
    empty, the trainer computes the errors."""
    functions: tuple[str, ...] = ()
    """Functions of the user, as ``module:function``, that measure a trial's validation predictions
    by its best weights."""


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """Request to profile training steps instead of training."""

    seconds: float = 0.0
    """Total time of the steps to profile [s]; 0 to train."""
    traced: bool = False
    """True to also write a Chrome trace of some steps."""


@dataclass(frozen=True, kw_only=True)
class SegmentSpec(JobSpec):
    """Job that trains one trial or member up to an epoch.

    The segment starts from the checkpoint of an earlier segment if there is one. It ends with a
    checkpoint at that epoch, or sooner by early stopping, on a request to stop, or before its
    deadline. Each attempt writes its own checkpoint file, so an attempt that is wrongly taken for
    lost does no harm.
    """

    network: NetworkConfig
    """Checked configuration of the network."""
    seed: int
    threads: int = 1
    store: StoreAccess
    start: Start = Start()
    epochs: EpochPlan
    validation: Validation = Validation()
    profile: Profiling = Profiling()

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint file that this attempt at the segment, and no other, writes."""
        return self.folder / (f"checkpoint-{self.attempt}.pt" if self.attempt else "checkpoint.pt")

    @property
    def trace(self) -> Path:
        """Path of the Chrome trace that this attempt writes if a traced profile is requested."""
        return self.folder / f"trace-{self.attempt}.json"


def read_job(values: Mapping[str, Any]) -> Call | SegmentSpec:
    """Return the call or segment that was converted to JSON values by :meth:`JobSpec.to_dict`.

    Raises
    ------
    InputError
        If the network of a segment is invalid.
    """
    return msgspec.convert(values, Call) if "function" in values else read_segment(values)


def read_segment(values: Mapping[str, Any]) -> SegmentSpec:
    """Return the segment that was converted to JSON values by :meth:`SegmentSpec.to_dict`.

    Raises
    ------
    InputError
        If the network is invalid.
    """
    network = load_network(values["network"], f"{values['kind']} {values['number']}")
    return msgspec.convert({**values, "network": network}, SegmentSpec)


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Result of a job as its trainer process knows it: status, progress, errors, time, energy."""

    from_epoch: int = 0
    """Number of epochs trained before this segment."""
    to_epoch: int = 0
    """Number of epochs trained at the end of this segment, earlier segments included; less than
    requested if the segment ended early."""
    status: Status
    reason: str = ""
    from_step: int = 0
    """Number of training steps that an earlier segment had taken after ``from_epoch`` whole
    epochs."""
    best_val_error: float | None = None
    """Criterion (relative validation error) of the weights kept so far: the smallest of any epoch,
    but see :class:`.Progress` for a member. None if no epoch was validated."""
    best_val_loss: float | None = None
    """Validation loss after the epoch of ``best_val_error``."""
    best_epoch: int | None = None
    """Epoch of ``best_val_error``, counted from 1."""
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of each epoch of the segment."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors after the epoch of ``best_val_error`` by name, such as `energy_mae`, in the
    data's units."""
    checkpoint: str = ""
    """Name of the training's latest checkpoint file in the segment's folder; empty if there is
    none."""
    checksum: int | None = None
    """CRC-32 checksum of that checkpoint; None if this attempt did not write it."""
    passed_over: str = ""
    """Reasons why the segment did not start from unusable checkpoints, separated by semicolons;
    empty if all were usable."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    """Number of training steps that this segment took."""
    step_seconds: float = 0.0
    """Mean time of a training step, waiting for its graphs included [s]. The first step includes
    warm-up and counts only if it is the only one."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a training step over all ranks, in the last epoch trained."""
    learning_rate: float = 0.0
    """Largest learning rate of the schedule, as set in the last epoch trained."""
    steady_steps: int = 0
    """Number of training steps after the first five, from which the speed is computed."""
    steady_graphs: int = 0
    """Number of graphs in the steady steps on all ranks."""
    steady_seconds: float = 0.0
    """Time of the steady steps, without validation and checkpoints [s]."""
    steady_joules: float | None = None
    """Energy of the steady steps on all ranks [J]; None if a rank has no energy counter."""
    peak_memory_gib: float = 0.0
    joules: float | None = None
    """Energy of the segment on all ranks [J]; None if a rank has no energy counter."""
    active: float | None = None
    """Mean fraction of the time in which the GPU computed anything, of all its processes, 0 to 1,
    in samples every ten seconds; None if nothing measures it."""
    spent_seconds: float = 0.0
    """Time of all earlier segments of this training up to the checkpoint from which this segment
    started, summed over GCDs [s]. Segments whose results were lost count too."""
    spent_joules: float = 0.0
    """Energy of these earlier segments [J]."""
    replayed: int = 0
    """Number of gradients and evaluations of a batch that were replayed from recordings, or on a
    CPU compiled."""
    not_replayed: str = ""
    """Reason why steps could not be replayed or compiled; empty if they were, or need not be."""
    started: float = 0.0
    """Unix time at which the segment started [s]."""
    ended: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    """Dict that a called function returned, or the profile of training steps; else empty."""

    @classmethod
    def cut_short(cls, status: Status, reason: str, began: float | None = None) -> TrainingOutcome:
        """Return the outcome of a segment that ends now without progress: status, reason, times.

        Parameters
        ----------
        status, reason
            Status with which the segment ends, and the reason in a few words.
        began
            Value of `time.perf_counter` when the segment started [s]; by default it started now.
        """
        now, seconds = time.time(), 0.0 if began is None else time.perf_counter() - began
        return cls(status=status, reason=reason, started=now - seconds, ended=now, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Node and GCDs on which a segment ran, as far as its worker knows them."""

    node: str = ""
    """Name of the node of the first rank."""
    gcds: list[str] = field(default_factory=list)
    """Name of each rank's GCD [n_ranks]; `node/gcd` for a GCD that is not on ``node``."""

    @property
    def places(self) -> list[tuple[str, str]]:
        """Name of the node and name of the GCD of each rank (process), pairs [n_ranks]."""
        split = [gcd.rpartition("/") for gcd in self.gcds]
        return [(node or self.node, gcd) for node, _, gcd in split]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Driver's knowledge of a segment: its plan, predicted time and memory, and time it waited."""

    together: float = 1.0
    """Mean number of segments on its GCD while it ran, this one included."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Values of the trial's hyper-parameters by dotted path into the network."""
    accumulation_steps: int = 1
    """Number of micro-batches into which each rank divided its graphs of a training step."""
    batches: int = 1
    """Number of batches in a training step, as in :class:`EpochPlan`."""
    planned_epochs: int | None = None
    """Number of epochs that the segment was planned to train; None if it has no forecast."""
    predicted_seconds: float | None = None
    """Predicted time of the segment, start-up and validation included [s]."""
    predicted_low: float | None = None
    """5th percentile of that time [s]."""
    predicted_high: float | None = None
    """95th percentile of that time [s]."""
    busy: float | None = None
    """Predicted fraction of the time in which its GCD computes, 0 to 1."""
    step_work: list[float] = field(default_factory=list)
    """Counted work of a training step: the fields of
    :class:`~hydragnn_flow.placement.cost_model.Work` in their order, which begin with operations,
    bytes moved, and kernel launches of a GCD."""
    waited_seconds: float | None = None
    """Time from when the segment could have run until the driver sent it [s]."""
    away_seconds: float | None = None
    """Time from when the driver sent the segment until it learnt of its end [s]."""
    uncorrected_seconds: float | None = None
    """Predicted time of the training steps from the network alone, summed over GCDs [s], before
    measurements correct it."""
    predicted_memory_gib: float | None = None
    """Predicted peak memory of each GCD [GiB], which one segment in a hundred exceeds."""
    uncorrected_memory_gib: float | None = None
    """Predicted peak memory of each GCD from the network alone, without a margin [GiB]."""


_NO_DETAILS: dict[str, Any] = {"history": [], "metrics": {}, "parameters": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentResult(Forecast, Place, TrainingOutcome, Segment):
    """Complete result of a segment, from trainer, worker and driver; a line of `segments.jsonl`."""

    version: int = VERSION

    @property
    def is_whole(self) -> bool:
        """True if the segment trained all planned epochs from the beginning of an epoch.

        False if it was cut short at either end.
        """
        epochs = self.to_epoch - self.from_epoch
        return self.status == "ok" and epochs == self.planned_epochs and not self.from_step

    @classmethod
    def of(
        cls, segment: Segment, outcome: TrainingOutcome, place: Place | None = None
    ) -> SegmentResult:
        """Return the result of a segment, made of its identifier, outcome and place (GCDs).

        Its forecast is empty; :meth:`expected` adds it. Without ``place`` no node or GCD is known.
        """
        return cls(
            kind=segment.kind,
            number=segment.number,
            rung=segment.rung,
            **vars(outcome),
            **vars(place or Place()),
        )

    def expected(self, forecast: Forecast) -> SegmentResult:
        """Return a copy of the result to which the fields of the driver's forecast are added."""
        return replace(self, **vars(forecast))

    def drop_details(self) -> None:
        """Empty ``history``, ``metrics`` and ``parameters`` of the result in place.

        This frees memory.
        """
        for name, nothing in _NO_DETAILS.items():
            object.__setattr__(self, name, nothing)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values for JSON, without ``answer``: a line of `segments.jsonl`."""
        names = (field.name for field in fields(self) if field.name != "answer")
        return {name: getattr(self, name) for name in names}


def trial_kwh(results: Iterable[SegmentResult]) -> float:
    """Return the total energy of the segments of trials among ``results`` [kWh].

    Segments whose energy was not measured add nothing.
    """
    return sum((result.joules or 0.0) / 3.6e6 for result in results if result.kind == "trial")
