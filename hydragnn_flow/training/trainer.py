"""Training loop of all trials and members, on one GCD or on many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch

from hydragnn_flow.config.base import import_class
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.columns import spread
from hydragnn_flow.data.reading.split import Split, SplitPart
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.models import STRESS, EngineModel, build_model
from hydragnn_flow.models.branches import BRANCH_KEY
from hydragnn_flow.models.heads import PlaceHeads
from hydragnn_flow.models.leverage import LEVERAGE, Leverage
from hydragnn_flow.models.model import Model
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoints.sendings import Sending
from hydragnn_flow.training.checkpoints.starting import begin_with, freeze
from hydragnn_flow.training.compiled import FirstBatches, sizes_that_pay
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.filled import (
    EVALUATION,
    TRAINING,
    FilledBatch,
    Filler,
    Size,
    choose_sizes,
    rows_of,
)
from hydragnn_flow.training.loading import moved, on_device
from hydragnn_flow.training.measures.criterion import Criterion, criterion_for, trivial_errors
from hydragnn_flow.training.measures.losses import Counts, Loss, check_cells
from hydragnn_flow.training.measures.metrics import Metrics
from hydragnn_flow.training.monitor import SAVES_PER_SECOND, Diverged, Stopped, TrainingMonitor
from hydragnn_flow.training.optimizers import Average, Clipping, Schedule, make_optimizer
from hydragnn_flow.training.parallel import Parallel, division_of, parallel
from hydragnn_flow.training.plan.batching import Budget, Step, graphs_kept, plan_in_order
from hydragnn_flow.training.plan.epochs import Epoch, Epochs
from hydragnn_flow.training.plan.sampling import judged_by
from hydragnn_flow.training.predict import KEY, Outputs, gathered, kept
from hydragnn_flow.training.recorded import (
    RECORDERS,
    Caller,
    RecordedSteps,
    Recorder,
    replays_wanted,
)
from hydragnn_flow.training.state import Progress, Spent, random_state, set_random_state


class Trainer:
    """Trainer of one network on one store, which can be stopped and resumed at every step.

    On a CPU a resumed training is bitwise identical to one that never stopped. An accelerator sums
    in no fixed order, so its last bits differ from run to run. With `dropout` on several ranks
    random numbers differ after a restart, as the checkpoint has those of the first rank only.

    Parameters
    ----------
    spec
        Segment to train, with the path of its checkpoint.
    store
        Store of the graphs.
    device
        Device that the training computes on.
    world
        Rank of this process and number of ranks.
    spent
        Function that returns seconds and joules spent so far, summed over ranks (a collective
        call). The checkpoint stores them together with the cost of earlier segments.
    """

    may_record = True
    """True if the trainer takes steps of its own, which a device may replay."""

    def __init__(
        self,
        spec: SegmentSpec,
        store: GraphStore,
        device: torch.device,
        world: World,
        spent: Callable[[], Spent] = Spent,
    ) -> None:
        self.spec, self.world, self.device = spec, world, device
        self.spent = spent
        self.spent_before = Spent()
        """Cost of earlier segments (jobs), up to the checkpoint that this segment resumes from."""
        network = spec.network
        self.settings = network.Training.with_batches(spec.epochs.batches)
        self.train, self.manifest = store["trainset"], store.manifest
        self.val: Split = judged_by(store["valset"], spec.validation.subset)
        """Validation graphs that judge each epoch: the whole split, or a fixed subset of it."""
        self.division = division_of(
            network, store.manifest, self.train, spec.epochs.sampling, world.size
        )
        """Assignment of branches (heads of one data set) to ranks; None if every rank holds all
        heads."""
        self.epochs = Epochs(
            *(spec, self.train, world.size, store.manifest.branch_names),
            dealing=None if self.division is None else self.division.step_of(self.train),
        )
        self.budget = Budget.of(network, spec.epochs.batches)
        self.reading = _smaller(Budget.of(network), self.settings.accumulation_steps)
        """Limits of a batch in evaluation and prediction: those of a micro-batch."""
        torch.manual_seed(spec.seed)
        model = build_model(network, store)
        if self.settings.precision == "fp64":
            model = model.double()
        freeze(model, spec.start.frozen)
        self.progress = Progress()
        self._to_compile = list[Size]()
        if self.settings.compile is True:
            self._to_compile = self._first_batches().sizes(most=1)
        recorder = self._recorder_for(model)
        self.sending = Sending(spec)
        state = self.sending.begin(world, device, lazily=self._divides)
        if state is None and spec.start.weights:
            # A device may lack memory for the whole network if it is to hold only a shard.
            whole = model if self._divides else model.to(device)
            begin_with(Path(spec.start.weights), whole, self.train, self.reading, device, world)
        self.model: nn.Module = model
        self.parallel: Parallel = parallel(
            *(model, self.settings, world, device, self.division), records=recorder is not None
        )
        self.loss = Loss(network, store.manifest, device)
        name = criterion_for(spec.validation.criterion, network, store.manifest)
        for function in spec.validation.functions:
            import_class(function)  # before anything is trained
        self.metrics = Metrics(self.loss.targets, store.manifest, name)
        trivial = spec.validation.trivial_errors or trivial_errors(self.train, store.manifest, name)
        self.criterion = Criterion.of(network, store.manifest, trivial, name)
        if STRESS in self.loss.targets:
            check_cells(store)
        # Sums of losses and errors of an evaluation; at one address, as they may be recorded.
        sizes = math.prod(self.loss.shape), math.prod(self.metrics.shape)
        self._sums = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self.schedule = Schedule(self.settings, spec.epochs.decay)
        records = recorder is not None and device.type != "cpu"
        self.optimizer = make_optimizer(self.model, self.settings.Optimizer, records=records)
        self.clipping = Clipping(self.settings.gradient_clip, device)
        self.average = Average(self.model, self.settings.ema_decay)
        self.best = _copy(self.model.state_dict())
        self.monitor: TrainingMonitor | None = None
        """Monitor of the last call of :meth:`run`, with the number and time of its steps; None
        before."""
        self.predicted: dict[str, dict[str, Tensor]] = {}
        """Predictions by the best weights: name of the split -> name of the output -> values."""
        self._outputs: Outputs | None = None
        """Validation predictions of this rank by the best weights of this run."""
        self._graphs = 0
        self.graphs_per_step = self.learning_rate = 0.0
        """Mean number of graphs per step over all ranks, and ``learning_rate``, the largest
        learning rate of the schedule; both in the last epoch."""
        self._unsaved = False
        if state is not None:
            self._restore(state)
        self.recorded = None if recorder is None else self._recorded(recorder)
        """Steps that the device replays; None if it records none."""
        self.rate = self.settings.Optimizer.learning_rate
        """Learning rate of the next step."""
        self.began = self.progress.epoch, self.progress.step
        """Epoch and step from which this segment continues."""
        self._draw_apart()
        if not self.progress.step:
            self.progress.batches = spec.epochs.batches
        elif self.progress.batches != spec.epochs.batches:
            self._take_steps_of(self.progress.batches)
        self.stand_in: Batch | None = None
        if world.size > 1:
            # Collectives need every rank, so one without graphs in a step computes this small one.
            first = np.arange(min(len(self.train), 4096))
            smallest = int(self.train.atoms_of(first).argmin())
            self.stand_in = moved(self.train.batch([smallest]), device)
            if self.division is not None:
                group = self.division.group_of(world.rank)
                self.stand_in[BRANCH_KEY].fill_(self.division.branches[group][0])

    def run(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        alive: Callable[[float], None] = lambda longest_step: None,
        joules: Callable[[], float | None] = lambda: None,
        epoch_ended: Callable[[LastEpoch], None] = lambda epoch: None,
    ) -> None:
        """Train the network up to the segment's last epoch, or until early stopping ends it.

        Parameters
        ----------
        should_stop
            Function that returns true to end the segment with a checkpoint; called before every
            step, with several ranks about every second.
        alive, joules
            Functions that report a sign of life and return the energy so far [J], as in
            :class:`TrainingMonitor`.
        epoch_ended
            Function called on the first rank with each epoch that has ended.

        Raises
        ------
        Diverged
            If a loss is NaN or infinite; the checkpoint keeps the last finite state.
        Stopped
            If ``should_stop`` returned true or the deadline has come; progress is saved.
        """
        self.monitor = monitor = TrainingMonitor(
            *(self.world, self.device, self.spec.deadline, should_stop),
            seconds_between_saves=self.spec.driver.site_gcds / SAVES_PER_SECOND,
            alive=alive,
            joules=joules,
        )
        try:
            self._compile(monitor)
            began = time.monotonic()
            while not self.is_finished:
                train_loss = self._train_epoch(monitor)
                with self.averaged() as model:
                    self._validate(model, monitor, partial(self._finish_epoch, train_loss))
                if self.world.is_first:
                    epoch_ended(self._last_epoch(time.monotonic() - began))
                if not self.is_finished and monitor.save_is_due(within_epoch=False):
                    self._save(monitor)
            self._judge_last_weights(monitor)
        except Stopped:
            self._end(monitor)
            raise
        self._end(monitor)

    def _last_epoch(self, seconds: float) -> LastEpoch:
        """Return the epoch that has ended, ``seconds`` after the first one of this run began."""
        epoch, loss, _, error = self.progress.history[-1]
        left = seconds * (self.spec.epochs.until_epoch - epoch) / (epoch - self.began[0])
        return LastEpoch(int(epoch), loss, error, time.time() + left)

    def _end(self, monitor: TrainingMonitor) -> None:
        if self.recorded is not None:
            self.recorded.forget()  # predictions need memory too
        if self._outputs is not None:
            self._keep(self.val, self._outputs)
            self._outputs = None
        if self._unsaved:
            self._save(monitor)

    def leave(self) -> None:
        """Leave the process group of the ranks (collective); each rank can then continue alone."""
        if self.world.is_joined:
            self.parallel = Parallel(self.model)
        self.world.leave()

    @property
    def is_finished(self) -> bool:
        """True if the segment's last epoch is reached, or early stopping ends the training."""
        progress = self.progress
        waited = progress.epoch - max(progress.best_epoch, progress.patient_since)
        gives_up = self.settings.EarlyStopping and waited >= self.settings.patience
        return gives_up or progress.epoch >= self.spec.epochs.until_epoch

    def plan(self, epoch: int) -> list[Step]:
        """Return all steps of an epoch, planned as if no step of it had been trained yet.

        ``epoch`` counts from 0. With a budget in steps, the epoch is planned to follow the
        last whole epoch that was trained.
        """
        plan = self.epochs.plan(epoch, self.progress.start, self.budget)
        return [step for window in plan.windows() for step in window]

    def batches(
        self,
        split: Split,
        steps: Sequence[Step],
        prepare: Callable[[Batch], FilledBatch | None] = lambda batch: None,
    ) -> Generator[Batch | FilledBatch | None, None, None]:
        """Yield this rank's batch of each step, on the device; None if the rank has no graphs.

        ``steps`` have indices of graphs in ``split``, and ``prepare`` is that of
        :func:`.on_device`. Close the generator if you leave it early.
        """
        mine = [step.of_rank(self.world.rank) for step in steps]
        read = split.batches(graphs for graphs in mine if len(graphs))
        with closing(on_device(read, self.device, prepare)) as there:
            for graphs in mine:
                yield next(there) if len(graphs) else None

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch | None], None, None]:
        """Yield a list of this rank's micro-batches for each step: at most `accumulation_steps`.

        A micro-batch has the graphs that a rank computes at once. If the epoch was begun on n times
        as many GCDs as this segment has, its steps keep their graphs, and the limit is n times
        larger. With sharded weights every rank has equally many micro-batches; an empty one is
        None. Close the generator if you leave it early.
        """
        all_alike = self.parallel.is_sharded
        most = self.settings.accumulation_steps
        most *= -(-self.progress.batches // self.spec.epochs.batches)
        mine = [
            [
                piece
                for piece in np.array_split(step.of_rank(self.world.rank), most)
                if len(piece) or all_alike
            ]
            for step in steps
        ]
        read = self.train.batches(piece for pieces in mine for piece in pieces if len(piece))
        with closing(on_device(read, self.device, partial(self._filled, TRAINING))) as there:
            for pieces in mine:
                yield [next(there) if len(piece) else None for piece in pieces]

    def train_step(
        self, step: Step, batch: Batch | Sequence[Batch | None] | None
    ) -> tuple[Tensor, Tensor]:
        """Take one optimiser step; return this rank's share of the loss, and the gradient's norm.

        Both are scalars on the device, because reading them would make the host wait in every step.

        Parameters
        ----------
        step
            Graphs of all ranks in the step.
        batch
            This rank's graphs, as one batch or several micro-batches; None if it has no graphs.
        """
        batches = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if self.recorded is not None:
            return self.recorded.take(batches, Counts(step.graphs, step.atoms), self.rate)
        self.optimizer.zero_grad()
        losses = []
        for number, piece in enumerate(batches or [None], start=1):
            # Gradients are exchanged once per step, with the last micro-batch.
            alone = self.world.size > 1 and number < len(batches)
            with self.parallel.without_exchange() if alone else nullcontext():
                losses.append(self._backward(step, piece))
        return torch.stack(losses).sum(), self.update()

    def predict(self, split: Split, before_batch: Callable[[], None] = lambda: None) -> None:
        """Predict a split with the best weights, and add the result to the checkpoint (collective).

        Call it after everything else is saved: it leaves the best weights in the model.

        Parameters
        ----------
        split
            Split or subset to predict.
        before_batch
            Function called before each batch, equally often on all ranks; its exception ends the
            call.
        """
        model, outputs = self._best_model(), Outputs()
        with closing(self._in_order(model, split, before_batch)) as found:
            for values in found:
                outputs.add(values)
        self._keep(split, outputs)
        if self.world.is_first:
            self.sending.rewrite({KEY: self.predicted})
        self.world.wait()

    def learn_leverage(self, before_batch: Callable[[], None] = lambda: None) -> None:
        """Fit the leverage, which shows how unlike the training data a structure is (collective).

        It is fitted for the best weights to the training split, of which at most 8,192 graphs are
        used. Later predictions contain it, and earlier ones are dropped. Structures whose features
        are not finite do not count. A network of an engine that does not tell its features gets no
        leverage.

        Parameters
        ----------
        before_batch
            Function called before each batch, as in :meth:`predict`.
        """
        model = self._best_model()
        leverage = model.leverage = Leverage(self.manifest.has_atoms).to(self.device)
        # In runs, since a stream reads blocks of a hundred graphs or so.
        chosen = np.sort(np.concatenate(list(spread(self.train.branch_runs, 8192, 16))))
        kept = graphs_kept(self.train, self.budget)[chosen]
        some = SplitPart(self.train, chosen[kept] if kept.any() else chosen[:1])
        moments: Tensor | None = None
        with closing(self._in_order(model, some, before_batch)) as found:
            for outputs in found:
                if LEVERAGE in outputs:
                    rows = nn.functional.pad(outputs[LEVERAGE], (0, 1), value=1.0)
                    rows = rows[rows.isfinite().all(dim=1)]
                    moments = rows.T @ rows + (0.0 if moments is None else moments)
        moments = None if moments is None else self.world.sum(moments)
        self.predicted = {LEVERAGE: {}}
        if moments is not None and moments[-1, -1] > 0:
            leverage.fit(moments)
            self.predicted = {LEVERAGE: leverage.state}

    def _best_model(self) -> Model:
        """Return the model with the best weights, and with their leverage if that is known."""
        self.parallel.settle()
        self.model.load_state_dict(self.best)
        model = self.model.eval()
        assert isinstance(model, Model)
        known = self.predicted.get(LEVERAGE, {})
        model.leverage = Leverage.of(self.manifest.has_atoms, known, self.device)
        return model

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        before_batch: Callable[[], None] = lambda: None,
        keep: Outputs | None = None,
    ) -> tuple[float, dict[str, float]]:
        """Return the loss, and the errors by name, of a model on a split (collective).

        The names are those of :meth:`.Metrics.means`. Computations are in the precision of the
        weights, without autocast, like later predictions.

        Parameters
        ----------
        model
            The trainer's model, in evaluation mode, with the weights to evaluate.
        split
            Split or subset to evaluate.
        before_batch
            Function called before each batch; an exception from it ends the evaluation.
        keep
            Collector that gets the outputs of this rank.
        """
        counts = Counts(len(split), int(split.n_atoms.sum()))
        n_losses = math.prod(self.loss.shape)
        sums = self._sums.zero_()

        def add(outputs: dict[str, Tensor], batch: Batch) -> None:
            errors = self.loss.sums(outputs, batch), self.metrics.sums(outputs, batch)
            sums.add_(torch.cat([each.flatten() for each in errors]))

        with closing(self._in_order(model, split, before_batch, add)) as found:
            for outputs in found:
                if keep is not None:
                    keep.add(outputs)
        sums = self.world.sum(sums)
        loss = self.loss.judged(sums[:n_losses].view(self.loss.shape), counts)
        return loss, self.metrics.means(sums[n_losses:].view(self.metrics.shape))

    def _in_order(
        self,
        model: nn.Module,
        split: Split,
        before_batch: Callable[[], None],
        add: Callable[[dict[str, Tensor], Batch], None] | None = None,
    ) -> Generator[dict[str, Tensor], None, None]:
        """Yield the outputs of this rank's batches of an evaluation; without rows if it has none.

        ``add`` adds the errors of outputs and their batch to ``_sums``.
        """

        def compute(batch: Batch) -> dict[str, Tensor]:
            outputs: dict[str, Tensor] = model(batch)
            if add is not None:
                add(outputs, batch)
            return outputs

        prepare = partial(self._filled, EVALUATION if add else "")
        batches = self.batches(split, self._steps_in_order(split), prepare)
        with closing(batches), torch.no_grad():
            for batch in batches:
                before_batch()
                if self.recorded is not None and isinstance(batch, FilledBatch):
                    yield self.recorded.evaluated(batch, compute, self._sums)
                elif batch is not None:
                    yield compute(batch)
                else:
                    yield {name: values[:0] for name, values in model(self.stand_in).items()}

    def _steps_in_order(self, split: Split) -> list[Step]:
        dealing = None if self.division is None else self.division.in_order(split)
        return plan_in_order(split, self.reading, self.world.size, dealing)

    def _keep(self, split: Split, outputs: Outputs) -> None:
        """Gather a split's predictions from all ranks in :attr:`predicted`, for the checkpoint."""
        steps = self._steps_in_order(split)
        found = gathered(outputs.arrays(), split, steps, self.world, self.device)
        self.predicted[split.name] = kept(found, split)

    def save(self) -> None:
        """Write the checkpoint file and, if ranks hold shards, their files (collective)."""
        before, now = self.spent_before, self.spent()
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "best": self.best,
            KEY: self.predicted,
            "optimizer": self._optimizer_state(),
            "schedule": self.schedule.plateau,
            "clipping": self.clipping.usual,
            "progress": vars(self.progress),
            "random": random_state(self.device),
            "spent": [before.seconds + now.seconds, before.joules + now.joules],
        }
        state, parts = self.parallel.taken_apart(state)
        if self.parallel.files:
            state |= self.sending.write_parts(parts, self.parallel.files, self.world, self.device)
        if self.world.is_first:
            self.sending.write(state)
        self.world.wait()
        self._unsaved = False

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Context manager: yield the model in evaluation mode with averages of its weights."""
        self.parallel.settle()
        with self.average.applied() as model:
            try:
                yield model
            finally:
                self.parallel.settle()

    def _save(self, monitor: TrainingMonitor) -> None:
        start = time.monotonic()
        self.save()
        monitor.saved(time.monotonic() - start)

    @property
    def _largest(self) -> int:
        """Number of atoms of the largest graph."""
        return max(int(split.n_atoms.max()) for split in (self.train, self.val))

    @property
    def _cache(self) -> Path:
        """Folder of compiled kernels, one for the whole run."""
        return Path(self.spec.driver.run_directory or self.spec.directory) / "compiled"

    @property
    def _divides(self) -> bool:
        """True if each rank holds only a shard of the network."""
        return self.world.size > 1 and (self.settings.is_sharded or self.division is not None)

    def _first_batches(self) -> FirstBatches:
        """Return the first batches of this rank, which are the same after a restart."""
        # Unlike a trial's, a member's `after_epoch` is another one after a restart.
        epochs, progress = self.spec.epochs, self.progress
        number = epochs.until_epoch - (epochs.after_epoch if self.spec.kind == "trial" else 0)
        pieces, steps = self._pieces(0, 0)
        left = (epochs.until_epoch - progress.epoch) * steps - progress.step
        rows = rows_of(self.train, pieces)
        return FirstBatches(pieces, rows, self._largest, number * steps, left)

    def _compile_if_it_pays(self) -> None:
        """Choose to compile ordinary steps if those to come are worth it."""

        def gradient(batch: Batch) -> None:
            loss = self._loss_of(self.model, batch, Counts(batch.num_graphs, batch.num_nodes))
            torch.autograd.grad(loss, self.parallel.weights)

        given = self.spec, self.device, self.world.size, self._first_batches, self.train
        if sizes := sizes_that_pay(*given, gradient):
            self._to_compile = sizes
            recorder = self._recorder_for(self.model)
            self.recorded = None if recorder is None else self._recorded(recorder)

    def _compile(self, monitor: TrainingMonitor) -> None:
        """Compile the gradient of each size to compile, with the first two batches that have it."""
        if self.is_finished:
            return
        self.model.train()
        is_auto = self.settings.compile == "auto"
        if is_auto and self.recorded is None:
            self._compile_if_it_pays()
        if self.recorded is None or not self._to_compile:
            return

        def batches() -> Iterator[FilledBatch | None]:
            for piece in self._first_batches().of_sizes(self._to_compile):
                self._check_stop(monitor)
                yield self._filled(TRAINING, self.train.batch(piece))

        self.recorded.compile(batches(), self.spec.deadline, compares=is_auto)
        monitor.evaluated(0.0)  # the time of the first step begins now

    def _recorder_for(self, model: nn.Module) -> Recorder | None:
        """Return the device's recorder; None if the steps of a network cannot be replayed there."""
        make = RECORDERS.get(self.device.type)
        # Ranks of a CPU might decide differently, but have to exchange gradients in one way.
        if make is None and self._to_compile and self.world.size == 1:
            make = Caller
        if make is None or not self.may_record or not replays_wanted():
            return None
        # The root of a mean over ranks is exchanged within the loss.
        is_root = self.settings.loss_function_type == "rmse"
        if self.world.size > 1 and (self._divides or is_root):
            return None
        # Heads of each place in a graph have none for padding.
        if any(isinstance(layer, (EngineModel, PlaceHeads)) for layer in model.modules()):
            return None
        return make(self.device)

    def _pieces(self, epoch: int, start: int) -> tuple[list[NDArray[np.int64]], int]:
        """Return graphs of this rank's micro-batches, of an epoch's first steps; number of steps.

        ``start`` is the number of graphs that were drawn in earlier epochs.
        """
        plan = self.epochs.plan(epoch, start, self.budget)
        mine = [step.of_rank(self.world.rank) for step in next(plan.windows(), [])]
        most = self.settings.accumulation_steps
        pieces = [piece for graphs in mine for piece in np.array_split(graphs, most)]
        return [piece for piece in pieces if len(piece)], plan.steps

    def _recorded(self, recorder: Recorder) -> RecordedSteps:
        """Prepare to record the steps of this training."""
        left = self.spec.epochs.until_epoch - self.progress.epoch
        sizes = {TRAINING: self._to_compile}
        if not self._to_compile:
            pieces, steps = self._pieces(self.progress.epoch, self.progress.start)
            rows = rows_of(self.train, pieces)
            sizes[TRAINING] = choose_sizes(rows, self._largest, left * steps)
        if not isinstance(recorder, Caller):
            read = [step.of_rank(self.world.rank) for step in self._steps_in_order(self.val)]
            rows = rows_of(self.val, read)
            sizes[EVALUATION] = choose_sizes(rows, self._largest, left * len(read))
        encoder: Any = self.model.encoder
        random = getattr(self.spec.network.Architecture, "dropout", 0.0) > 0
        return RecordedSteps(
            *(partial(self._loss_of, self.model), self.update, self.optimizer, self.average),
            *(self.parallel.weights, self.device, self.world, recorder),
            Filler(self.manifest, self.loss.targets, 2.0 * encoder.cutoff, sizes, self._largest),
            precision=None if random else self.settings.precision,
            cache=self._cache if self._to_compile else None,
        )

    def _filled(self, purpose: str, batch: Batch) -> FilledBatch | None:
        """Return a filled copy of a batch; None if it is not to be replayed."""
        return None if self.recorded is None else self.recorded.filled(purpose, batch)

    def _optimizer_state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        groups = [{**group, "lr": self.rate} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def _restore(self, state: dict[str, Any]) -> None:
        # Values are moved from the host to where they belong. An optimiser's step count stays there
        # unless a fused kernel needs it, because reading it would make each step wait.
        here, own = self.parallel, self.model.state_dict()
        self.model.load_state_dict(here.placed(state["model"], own))
        average = here.placed(state["average"]["weights"], self.average.weights)
        self.average.load_state_dict({**state["average"], "weights": average})
        best = here.placed(state["best"], own)
        self.best = {name: value.to(self.device) for name, value in best.items()}
        optimizer = here.placed_optimizer(state["optimizer"])
        mine = self.optimizer.param_groups[0]
        for group in optimizer["param_groups"]:
            # As in this optimiser, not the one that wrote the state.
            group |= {name: mine[name] for name in ("fused", "capturable") if name in mine}
        self.optimizer.load_state_dict(optimizer)
        self.schedule.plateau = state["schedule"]
        self.clipping.usual.copy_(state.get("clipping", self.clipping.usual))
        self.progress = Progress.of(state["progress"])
        set_random_state(state["random"], self.device)
        if self.sending.checkpoint is not None:
            self.predicted = state[KEY]
            self.spent_before = Spent(*state["spent"])
        else:
            if self.progress.epoch < self.spec.epochs.until_epoch:
                self.progress.leave_trial()
            self._unsaved = True

    def _draw_apart(self) -> None:
        """Seed torch's random numbers, for dropout, differently on each rank."""
        if not self.world.is_first:
            # The first rank continues with the numbers in the checkpoint.
            numbers = [self.spec.seed, self.progress.epoch, self.progress.step, self.world.rank]
            torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))

    def _take_steps_of(self, batches: int) -> None:
        """Set the number of batches per step; adapt the learning rate and the weights' average."""
        network = self.spec.network
        self.budget = Budget.of(network, batches)
        training = network.Training.with_batches(batches)
        self.average.decay = training.ema_decay
        self.schedule.learning_rate = training.Optimizer.learning_rate

    def _train_epoch(self, monitor: TrainingMonitor) -> float:
        """Take the remaining steps of the current epoch; return the mean loss of all its steps."""
        self.model.train()
        progress = self.progress
        plan = self.epochs.plan(progress.epoch, progress.start, self.budget)
        self.graphs_per_step = plan.graphs_per_step
        self._graphs, first = 0, progress.step
        self.learning_rate = self.schedule.learning_rate
        for window in plan.windows(progress.step):
            self._train_window(plan, window, monitor)
        self._sync(monitor)
        self._check_stop(monitor)
        if steps := progress.step - first:
            self.graphs_per_step = self._graphs / steps
        # There is no step if no graph of a short epoch fits the limits.
        return progress.losses / max(progress.step, 1)

    def _train_window(self, plan: Epoch, steps: Sequence[Step], monitor: TrainingMonitor) -> None:
        """Take ``steps`` of an epoch."""
        progress = self.progress
        with closing(self.micro_batches(steps)) as batches:
            for step, pieces in zip(steps, batches, strict=True):
                self._check_stop(monitor)
                most = max(plan.steps, progress.step + 1)
                self.rate = self.schedule.rate(progress.epoch, progress.step, most)
                if self.recorded is None:
                    for group in self.optimizer.param_groups:
                        group["lr"] = self.rate
                monitor.record(*self.train_step(step, pieces), step.graphs)
                progress.step += 1
                progress.drawn = step.drawn
                self._graphs += step.graphs
                self._unsaved = True
                if monitor.sync_is_due:
                    self._sync(monitor)
                    if monitor.save_is_due(within_epoch=True):
                        self._save(monitor)

    def update(self) -> Tensor:
        """Change weights and their average by the gradients; return the unclipped gradient norm."""
        # The norm is needed without clipping too: it shows whether the gradient is finite.
        norm = self.parallel.norm()
        self.clipping.clip(self.parallel.weights, norm)
        self.optimizer.step()
        self.average.update()
        return norm

    def _backward(self, step: Step, batch: Batch | None) -> Tensor:
        """Add a batch's gradient to the weights' gradients; return the batch's part of the loss.

        If ``batch`` is None, both are zero, but this rank takes part in collectives.
        """
        loss = self._loss_of(self.parallel.outputs, batch, Counts(step.graphs, step.atoms))
        # DDP averages gradients over ranks, but the contributions of ranks have to add up.
        self.parallel.backward(loss * self.world.size)
        return loss.detach()

    def _loss_of(
        self, compute: Callable[[Any], dict[str, Tensor]], batch: Batch | None, counts: Counts
    ) -> Tensor:
        """Compute this rank's part of the loss, zero for no batch, in the training's precision."""
        mine = self.stand_in if batch is None else batch
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"
        ):
            outputs = compute(mine)
        means = self.loss.term_means(outputs, mine, counts)
        return self.loss.of_rank(0.0 * means if batch is None else means, self.world)

    def _sync(self, monitor: TrainingMonitor) -> None:
        progress = self.progress
        for loss in monitor.sync(progress.epoch + 1, progress.step):
            progress.losses += loss

    def _check_stop(self, monitor: TrainingMonitor) -> None:
        reason = monitor.reason_to_stop()
        if reason:
            self._sync(monitor)
            progress = self.progress
            raise Stopped(f"{reason}, in epoch {progress.epoch + 1} after step {progress.step}")

    def _validate(
        self,
        model: nn.Module,
        monitor: TrainingMonitor,
        are_kept: Callable[[float, float, dict[str, float]], bool],
    ) -> None:
        """Evaluate a model's weights, and keep their predictions if the weights are kept.

        ``are_kept`` tells that from the validation loss, the criterion, and the errors by name.
        """
        start, outputs = time.monotonic(), Outputs()
        val_loss, metrics = self.evaluate(
            model, self.val, lambda: self._check_stop(monitor), outputs
        )
        monitor.evaluated(time.monotonic() - start)
        if are_kept(val_loss, self.criterion.of_metrics(metrics), metrics):
            self._outputs = outputs

    def _finish_epoch(
        self, train_loss: float, val_loss: float, error: float, metrics: dict[str, float]
    ) -> bool:
        """Record a validated epoch; return whether its weights are kept."""
        progress = self.progress
        if not math.isfinite(val_loss + error):
            raise Diverged(f"validation loss is {val_loss} in epoch {progress.epoch + 1}")
        progress.epoch += 1
        progress.step, progress.losses = 0, 0.0
        progress.start, progress.drawn = progress.start + progress.drawn, 0
        if progress.batches != self.spec.epochs.batches:
            progress.batches = self.spec.epochs.batches
            self._take_steps_of(progress.batches)
        progress.history.append([progress.epoch, train_loss, val_loss, error])
        self.schedule.observe(val_loss)
        self._unsaved = True
        # Of few structures the smallest criterion is chance. Later weights, at a lower rate, had
        # errors up to 15 % smaller on others.
        tolerated = min(progress.smallest, progress.best_val_error)
        tolerated *= 1 + math.sqrt(1 / len(self.val))
        is_late = self.spec.kind == "member" and not self.settings.EarlyStopping
        return self._compare(val_loss, error, metrics, is_late and error <= tolerated)

    def _judge_last_weights(self, monitor: TrainingMonitor) -> None:
        """Validate a member's last weights, without averaging; keep them if they are the best."""
        progress = self.progress
        if self.spec.kind != "member" or progress.ended == progress.epoch:
            return
        if self.average.decay:
            self._validate(self.model.eval(), monitor, self._compare)
        progress.ended = progress.epoch
        self._unsaved = True

    def _compare(
        self, val_loss: float, error: float, metrics: dict[str, float], is_enough: bool = False
    ) -> bool:
        """Keep the model's weights if their error is the smallest or ``is_enough``; return that."""
        progress = self.progress
        if not (is_enough or error < progress.best_val_error):
            return False
        progress.best_val_error, progress.best_val_loss = error, val_loss
        progress.best_epoch, progress.metrics = progress.epoch, metrics
        self.best = _copy(self.model.state_dict())
        self.predicted = {}
        return True


def _smaller(budget: Budget, micro_batches: int) -> Budget:
    limits = {name: max(1, limit // micro_batches) for name, limit in budget.limits.items()}
    return Budget(**limits, oversized=budget.oversized)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() for key, value in state.items()}
