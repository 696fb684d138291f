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

from hydragnn_flow.config.data import Mode
from hydragnn_flow.config.network import NetworkConfig, load_network
from hydragnn_flow.config.run import CriterionName

Kind = Literal["trial", "member", "preparation", "prediction", "profile", "check", "call"]
Sampling = str | Mapping[str, float]
"""Frequency with which training draws graphs of each data set, that is of each branch:
``proportional`` to its size, ``equal``, or a weight for each by name or number of the branch."""
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
"""First words of `reason` in the result of a segment that leaves a fused group, to go on alone."""
AGREED: tuple[Status, ...] = ("ok", "diverged", "interrupted")
"""Statuses that all ranks of a segment reach after the same training step. With any other, one rank
ends while the others wait for it."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Identifier of a job: its kind, the number of its trial or member, and the rung it ends at."""

    kind: Kind
    """Purpose of the job: training of a ``trial`` or ``member``, or another."""
    number: int
    """Number of the trial or member."""
    rung: int
    """Position of the rung at which a trial's segment ends, from 0 on."""


@dataclass(frozen=True, kw_only=True)
class JobSpec(Segment):
    """Job as sent to a trainer process, with the fields common to segments and calls."""

    rung: int = 0
    directory: str
    """Folder for the files of the job, its `log` included; empty if it has none."""
    run_directory: str = ""
    """Run directory, whose file `driver.json` holds the token of the newest driver."""
    token: str = ""
    """Token of the driver that sent this job; a newer driver's token ends it."""
    attempt: str = ""
    """Identifier of this attempt; each time that a job is sent is an attempt."""
    site_gcds: int = 1
    """Number of GCDs of the site, whose processes share a file system."""
    deadline: float | None = None
    """Time by which the job has to end, by the node's monotonic clock [s]; a segment then ends with
    a checkpoint. None for no limit."""

    @property
    def folder(self) -> Path:
        """Folder of the job."""
        return Path(self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, which :func:`read_job` reads."""
        return vars(self)


@dataclass(frozen=True, kw_only=True)
class Call(JobSpec):
    """Job that calls a function, in a process that has torch imported.

    Like every job, it may be sent again although it has ended. So the function writes its files
    completely or not at all, and first checks whether they exist.
    """

    function: str
    """Name of the function, `module:function`."""
    argument: Mapping[str, Any]
    """Argument of the function, as JSON values. A dict that the function returns becomes ``answer``
    of the :class:`TrainingOutcome`."""
    what: str = ""
    """Name of the call in messages; empty for the kind and number of the job."""

    def __str__(self) -> str:
        return self.what or f"{self.kind} {self.number}"


@dataclass(frozen=True, kw_only=True)
class SegmentSpec(JobSpec):
    """Job that trains one trial or member up to an epoch.

    It starts from the checkpoint of an earlier segment if there is one. It writes a checkpoint of
    its own at that epoch, or earlier on early stopping, on a request to stop, or at its deadline.
    Each attempt writes a file of its own, so one that is wrongly taken for lost does no harm.
    """

    store: str
    """Path of the GraphStore."""
    network: NetworkConfig
    """Checked configuration of the network."""
    until_epoch: int
    """Total number of epochs trained when the segment ends."""
    seed: int
    start_from: str | None = None
    """Path of its trial's checkpoint, for a member that begins with it; else None."""
    weights: str = ""
    """File of initial weights for a trial or member without a checkpoint; empty for random ones."""
    frozen: tuple[str, ...] = ()
    """Names of parameters, or of modules that hold them, that are not trained."""
    begin_with: str = ""
    """Name of the checkpoint in the job's folder to start from; empty if the driver knows none."""
    may_have_begun: bool = True
    """True if earlier attempts may have left checkpoints that the driver does not know; the segment
    then starts from the one with the most progress. False if there are none."""
    decay: tuple[int, int] | None = None
    """First and last epoch between which a member's learning rate falls, to zero unless a scheduler
    is configured; None for the schedule of a trial."""
    checksums: dict[str, int] = field(default_factory=dict)
    """CRC-32 at the end of each checkpoint that the driver knows, by the file's name."""
    after_epoch: int = 0
    """Number of epochs trained when the segment was planned; its history has the epochs after."""
    batches: int = 1
    """Number of batches in a training step, each as large as in the network's `Training`, from the
    next epoch on; the learning rate is adapted to it."""
    bootstrap: bool = False
    """True to train on a bootstrap resample of the training split, drawn by the seed; False for the
    split itself."""
    budget: tuple[str, float] | None = None
    """Unit and size of the training budget, such as ("steps", 1000), of which each of the network's
    `num_epoch` epochs is an equal part; None if an epoch is a pass through the training split."""
    sampling: Sampling = "proportional"
    """Frequency with which graphs of each data set are drawn, as in `data.sampling`."""
    validation: tuple[int, int] | None = None
    """Number of graphs of the validation split on which each epoch is judged, and the seed that
    draws them; None for the whole split."""
    criterion: CriterionName = "mae"
    """Error by which epochs are compared: ``mae`` or ``rmse``."""
    trivial_errors: dict[str, float] = field(default_factory=dict)
    """Error of a trivial predictor by target, in units of which the criterion is computed; if
    empty, the trainer computes the errors."""
    threads: int = 1
    mode: Mode = "memory"
    """Access of training to the store: ``memory``, ``random`` or ``stream``, as in `data.mode`."""
    scratch: str | None = None
    """Fast local directory of the node for a copy of the store."""
    profile_seconds: float = 0.0
    """Time for which training steps are only profiled [s]; 0 to train."""
    traced: bool = False
    """True to add a trace of some steps to the profile."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, which :func:`read_job` reads."""
        return {**vars(self), "network": self.network.to_json()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SegmentSpec:
        """Return the segment whose JSON values :meth:`to_dict` has made.

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
        """Path of the checkpoint that this attempt, and no other, writes."""
        return self.folder / (f"checkpoint-{self.attempt}.pt" if self.attempt else "checkpoint.pt")

    @property
    def trace(self) -> Path:
        """Path of the trace, in Chrome's format, that this attempt at a profile writes."""
        return self.folder / f"trace-{self.attempt}.json"


def read_job(values: Mapping[str, Any]) -> Call | SegmentSpec:
    """Return the call or segment whose JSON values `to_dict` has made.

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
    """Number of epochs trained before this segment."""
    to_epoch: int = 0
    """Number of epochs trained at its end, earlier segments included; less than requested after
    early stopping."""
    status: Status
    reason: str = ""
    from_step: int = 0
    """Number of training steps after ``from_epoch`` epochs that an earlier segment had taken."""
    best_val_error: float | None = None
    """Smallest criterion of an epoch so far (for a member since it left its trial), by which rungs
    compare trials; None if no epoch was judged."""
    best_val_loss: float | None = None
    """Validation loss after the epoch of ``best_val_error``."""
    best_epoch: int | None = None
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of each epoch of the segment."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors after the epoch of ``best_val_error`` by name, as `energy_mae`, in the
    data's units."""
    checkpoint: str = ""
    """Name of the segment's last checkpoint in its folder; empty if it wrote none."""
    checksum: int | None = None
    """CRC-32 at the end of that checkpoint."""
    passed_over: str = ""
    """Sentences about checkpoints from which the segment should have started, and why it did not;
    empty without any."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    """Number of training steps."""
    step_seconds: float = 0.0
    """Mean time of a training step, from batch to batch [s]. The first step includes warm-up and
    counts only if it is the only one."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a training step over all ranks, in the last epoch trained."""
    learning_rate: float = 0.0
    """Largest learning rate in that epoch, before a schedule lowers it."""
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
    spent_seconds: float = 0.0
    """Time of all earlier segments on the way to the checkpoint from which this one started, summed
    over GCDs [s]. Lost segments count too, although their results have no ``seconds``."""
    spent_joules: float = 0.0
    """Energy of these earlier segments [J]."""
    fused: int = 1
    """Number of segments that were trained together in one process, this one included. Its times
    and energy are its share of theirs; its peak memory is that of the process."""
    started: float = 0.0
    """Unix time at which the segment started [s]."""
    ended: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    """Dict that a called function returned, or the profile of training steps; else empty."""

    @classmethod
    def cut_short(cls, status: Status, reason: str, began: float | None = None) -> TrainingOutcome:
        """Return the outcome of a segment that ends now, with nothing known of its training.

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
    """Name of each rank's GCD [n_ranks]; `node/gcd` if it is on another node than the first."""

    @property
    def places(self) -> list[tuple[str, str]]:
        """Names of node and GCD of each rank [n_ranks]."""
        split = [gcd.rpartition("/") for gcd in self.gcds]
        return [(node or self.node, gcd) for node, _, gcd in split]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Plan and predicted cost of a segment, and the driver's times around it."""

    together: float = 1.0
    """Mean number of segments on its GCD while it ran, this one included."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Values of the trial's hyper-parameters by dotted path into the network."""
    accumulation_steps: int = 1
    """Number of micro-batches into which each rank divided its graphs of a training step."""
    batches: int = 1
    """Number of batches in a training step, as in :class:`SegmentSpec`."""
    planned_epochs: int | None = None
    """Number of epochs that the segment was to train; None if it has no plan."""
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
        """True if the segment started at the beginning of an epoch and trained all planned epochs;
        False if it was cut short at either end."""
        epochs = self.to_epoch - self.from_epoch
        return self.status == "ok" and epochs == self.planned_epochs and not self.from_step

    @classmethod
    def of(
        cls, segment: Segment, outcome: TrainingOutcome, place: Place | None = None
    ) -> SegmentResult:
        """Return the result of a segment from its identifier, outcome and place.

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
        """Return the result with the driver's forecast added."""
        return replace(self, **vars(forecast))

    def drop_details(self) -> None:
        """Empty the large fields ``history``, ``metrics`` and ``parameters`` to free memory."""
        for name, nothing in _NO_DETAILS.items():
            object.__setattr__(self, name, nothing)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but ``answer`` as plain values for JSON, for a line of the ledger."""
        names = (field.name for field in fields(self) if field.name != "answer")
        return {name: getattr(self, name) for name in names}


def trial_kwh(results: Iterable[SegmentResult]) -> float:
    """Return the counted energy of all segments of trials [kWh]; uncounted ones add nothing."""
    return sum((result.joules or 0.0) / 3.6e6 for result in results if result.kind == "trial")
