"""Optimiser of a training: Muon, learning rate of every step, moving average of the weights.

The rate depends only on the progress of the training in epochs, and for ``ReduceLROnPlateau`` on
past validation losses. So it is the same after a restart, and on any number of ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hydragnn_flow.config.network.training import Optimizer, Scheduler, Training
from hydragnn_flow.models.cost import weight_matrices


class Muon(torch.optim.AdamW):
    """Optimiser Muon for weight matrices, with AdamW for all other parameters.

    Steps of a matrix are alike along all of its singular directions (Jordan et al., 2024,
    https://kellerjordan.github.io/posts/muon). They are as long as AdamW's (Liu et al.,
    arXiv:2502.16982, eq. 4), so that its learning rates fit. ``torch.optim.Muon`` takes matrices
    only, one after the other. Steps do not synchronize with the device.

    Parameters
    ----------
    params
        Parameters that are trained.
    matrices
        Parameters among ``params`` that Muon trains, from
        :func:`~hydragnn_flow.models.cost.weight_matrices`; AdamW trains the others.
    lr, weight_decay
        Settings as in ``torch.optim.AdamW``, whose other defaults apply too.
    capturable
        True if steps may be recorded as CUDA graphs.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        weight_decay: float = 0.01,
        *,
        matrices: Iterable[Tensor] = (),
        capturable: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay=weight_decay, capturable=capturable, fused=True)
        self._matrices = {id(weight) for weight in matrices}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the parameters by one optimiser step with their gradients.

        Unlike in torch, ``closure`` is ignored and nothing is returned.
        """
        together: list[tuple[dict[str, Any], list[Tensor]]] = []
        given = []
        for group in self.param_groups:
            alike = defaultdict[Any, list[Tensor]](list)
            for weight in group["params"]:
                if id(weight) in self._matrices and weight.grad is not None:
                    # Only one sharded matrix at a time is whole on a device.
                    key = id(weight) if isinstance(weight, DTensor) else weight.shape
                    alike[key].append(weight)
                    given.append((weight, weight.grad))
            together += [(group, matrices) for matrices in alike.values()]
        for weight, _ in given:
            weight.grad = None  # so that AdamW passes it over
        super().step()
        for weight, gradient in given:
            weight.grad = gradient
        for group, matrices in together:
            # Root mean square of AdamW's steps (Liu et al.).
            length = 0.2 * max(matrices[0].shape) ** 0.5
            steps = self._orthogonal(matrices, 0.95)
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_mul_(steps, -group["lr"] * length)
            torch._foreach_add_(matrices, steps)

    def _orthogonal(self, matrices: list[Tensor], momentum: float) -> list[Tensor]:
        """Return the averaged gradients of matrices of one shape with singular values near one."""
        for weight in matrices:
            if not (state := self.state[weight]):
                state["step"] = torch.zeros(())  # which AdamW looks for when a state is loaded
                state["momentum_buffer"] = torch.zeros_like(weight)
        means = [self.state[weight]["momentum_buffer"] for weight in matrices]
        gradients = [weight.grad for weight in matrices if weight.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        steps = torch._foreach_lerp(gradients, means, momentum)
        found = orthogonalised(torch.stack([_whole(step) for step in steps]))
        # Heads of data sets that a batch lacks have gradients of zero, and stay as they are.
        sizes = torch.stack([_whole(size) for size in torch._foreach_norm(gradients, math.inf)])
        found = found * (sizes > 0)[:, None, None]
        return [_divided_as(w, step) for w, step in zip(matrices, found.unbind(), strict=True)]


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return matrices [n, rows, columns] whose singular values have been changed to about one.

    Singular vectors stay. After five Newton–Schulz iterations, singular values from 0.004 to 1
    times the root of the sum of their squares are between 0.7 and 1.2 (coefficients of Jordan et
    al.). The iterations work on the smaller of the two products of the matrix and its transpose.
    """
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    # First by the largest element: the squares of small ones would be zero.
    largest = wide.abs().amax(dim=(1, 2), keepdim=True)
    wide = wide / largest.clamp_min(torch.finfo(wide.dtype).tiny)
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1.0)
    product = wide @ wide.mT
    factor = step = _polynomial(product)
    for _ in range(4):
        product = step @ product @ step
        step = _polynomial(product)
        factor = step @ factor
    found: Tensor = factor @ wide
    return found if matrices.shape[1] <= matrices.shape[2] else found.mT


def _polynomial(product: Tensor) -> Tensor:
    found = torch.baddbmm(product, product, product, beta=-4.7750, alpha=2.0315)
    found.diagonal(dim1=1, dim2=2).add_(3.4445)
    return found


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be sharded over ranks in one piece (collective)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _divided_as(weight: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's rows of a tensor that all ranks have, if ``weight`` is sharded."""
    if not isinstance(weight, DTensor):
        return whole
    return distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)


# Adagrad's fused kernel is for the CPU alone in most versions of torch, which fail only in a step.
_FUSED = ("Adam", "AdamW", "SGD")
# Fused kernels for which torch has rules to act on shards.
_FUSED_ON_PARTS = ("Adam", "AdamW")


def make_optimizer(
    model: nn.Module, settings: Optimizer, *, records: bool = False
) -> torch.optim.Optimizer:
    """Return the optimiser of a network's trained parameters, as `Training.Optimizer` says.

    Parameters
    ----------
    model
        Network whose parameters are trained, except frozen ones.
    settings
        Section `Training.Optimizer` with type, weight decay and largest learning rate; a schedule
        sets the rate of each step.
    records
        True if the device may record updates, for which all numbers have to be on the device.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kind: Any = getattr(torch.optim, settings.type)
    options: dict[str, Any] = {"lr": settings.learning_rate}
    if settings.weight_decay is not None:
        options["weight_decay"] = settings.weight_decay
    if settings.type == "Muon":
        kind = partial(Muon, matrices=weight_matrices(model))
    make: Callable[..., torch.optim.Optimizer] = kind
    in_parts = any(isinstance(weight, DTensor) for weight in weights)
    if records and settings.type in ("Adam", "AdamW", "Muon"):
        options["capturable"] = True
    if settings.type in (_FUSED_ON_PARTS if in_parts else _FUSED):
        with suppress(RuntimeError):  # raised for devices that have no fused kernel
            return make(weights, fused=True, **options)
    return make(weights, **options)


class Schedule:
    """Learning-rate schedule of a training, which gives the learning rate of each step.

    It is that of `Training.Scheduler`; without that section the rate follows :func:`decay_factor`.

    Parameters
    ----------
    training
        Section `Training`, with schedule, largest learning rate and number of epochs.
    decay
        First and last epoch of a member's schedule; None for a trial, whose schedule spans the
        whole training.
    """

    def __init__(self, training: Training, decay: tuple[int, int] | None) -> None:
        self.settings = training.Scheduler
        self.learning_rate = training.Optimizer.learning_rate
        self.decay = decay
        self.first, self.last = decay or (0, training.num_epoch)
        self.plateau: dict[str, float] = {"level": 1.0, "best": math.inf, "waited": 0}
        """State for a checkpoint: factor of the rate after plateaus, and what it follows from."""

    def rate(self, epoch: int, step: int, steps: float) -> float:
        """Return the learning rate of one training step.

        Parameters
        ----------
        epoch, step
            Epoch and step within it, both counted from 0.
        steps
            Number of steps in the epoch.
        """
        if self.settings is None:
            return self.learning_rate * decay_factor(epoch, self.decay)
        return self._rate(self.settings, epoch - self.first + step / steps, 1 / steps)

    def observe(self, val_loss: float) -> None:
        """Record an epoch's validation loss, by which ``ReduceLROnPlateau`` lowers the rate."""
        settings, state = self.settings, self.plateau
        if settings is None or settings.type != "ReduceLROnPlateau":
            return
        # A difference and not a ratio as in torch, because a likelihood can be negative.
        # Least relative decrease of the validation loss that counts as an improvement, as in torch.
        if math.isinf(state["best"]) or val_loss < state["best"] - 1e-4 * abs(state["best"]):
            state["best"], state["waited"] = val_loss, 0
            return
        state["waited"] += 1
        if state["waited"] > settings.patience:
            state["level"] *= settings.factor
            state["waited"] = 0

    def _rate(self, settings: Scheduler, done: float, one_step: float) -> float:
        """Return the learning rate after ``done`` scheduled epochs, a fractional number.

        ``one_step`` is the fraction of an epoch that a step takes.
        """
        largest, span = self.learning_rate, max(self.last - self.first, 1)
        smallest = min(settings.min_lr, largest)
        warm_up = settings.warmup_epochs
        rising = min(1.0, (done + one_step) / warm_up) if warm_up else 1.0
        if settings.type == "ReduceLROnPlateau":
            return rising * max(largest * self.plateau["level"], smallest)
        if settings.type == "cosine":
            passed = _clamped((done - warm_up) / max(span - warm_up, one_step))
            return rising * (smallest + (largest - smallest) * _half_cosine(passed))
        return rising * largest


def decay_factor(epoch: int, decay: tuple[int, int] | None) -> float:
    """Return the factor of the learning rate in an epoch if there is no `Training.Scheduler`.

    Epochs are counted from 0. A trial (``decay`` is None) keeps its learning rate, factor 1, so
    that its checkpoint can be continued from any rung of the search. A member's factor falls from 1
    to 0 along half a cosine between the two epochs of ``decay``, so that it converges (the stable
    and decay phases of Hu et al., arXiv:2404.06395).
    """
    if decay is None:
        return 1.0
    start, end = decay
    return _half_cosine(_clamped((epoch - start) / max(end - start, 1)))


def _half_cosine(x: float) -> float:
    """Return half a cosine from one at 0 to zero at 1."""
    return 0.5 * (1 + math.cos(math.pi * x))


def _clamped(x: float) -> float:
    return min(max(x, 0.0), 1.0)


class Clipping:
    """Clipping of gradients by their usual norm, the geometric mean over about 100 steps.

    A norm more than e times the mean, or less than 1/e of it, counts as that.

    A few steps with a norm many times the usual one, as of one of several data sets, would fill the
    momentum of Adam and Muon, whose steps do not grow with it, and so undo all others. A limit in
    the unit of the loss would fit few data.

    Parameters
    ----------
    most
        Largest norm of a gradient, relative to the usual norm; 0 for no limit.
    device
        Device of the gradients.
    """

    def __init__(self, most: float, device: torch.device) -> None:
        self.most = most
        self.usual = torch.zeros(2, dtype=torch.float64, device=device)
        """Mean logarithm of the norm, and number of steps that it knows, ``[2]``."""

    @torch.no_grad()
    def clip(self, weights: Sequence[Tensor], norm: Tensor) -> None:
        """Scale the gradients of ``weights`` down if their norm exceeds the limit.

        ``norm`` is that of the gradients of all ranks. Norms that are zero or not finite are not
        learnt. All is done on the device, and may be recorded.
        """
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if not (self.most and gradients):
            return
        found = norm.double().log()
        mean, steps = self.usual.unbind()
        above = torch.where(steps > 0, found - mean, 0.0)
        factor = (math.log(self.most) - above).clamp_max(0).exp()
        torch._foreach_mul_(_here(gradients), factor.to(norm.dtype))
        learnt = torch.where(steps > 0, mean, found)
        learnt = learnt + above.clamp(-1, 1) / (steps + 1).clamp_max(100)
        changed = torch.stack([learnt, steps + 1])
        self.usual.copy_(torch.where(found.isfinite(), changed, self.usual))


class Average:
    """Exponential moving average of a model's weights, over about ``1 / (1 - decay)`` steps.

    Polyak & Juditsky, SIAM J. Control Optim. 30, 838 (1992). A trial is compared at its rung, in
    the middle of its learning-rate schedule. There the average is far less noisy than the weights
    of the last step.

    Parameters
    ----------
    model
        The model that is trained.
    decay
        Fraction of the old average that a step keeps. With 0 the average is the model itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.weight: Tensor | None = None
        """Weight of the model in the next update, a scalar on the device, for a caller that counts
        steps by :meth:`next_weight`; None if :meth:`update` does."""
        self._model = model
        self._newest = dict(model.named_parameters())
        self.weights = {k: v.detach().clone() for k, v in self._newest.items()} if decay else {}
        """Averaged parameters by name; empty if ``decay`` is 0."""

    def next_weight(self) -> float:
        """Count a training step; return the weight of the model's weights in the average."""
        # Short at first, or the random initial weights would linger.
        weight = max(1 - self.decay, 9 / (10 + self.steps)) if self.steps else 1.0
        self.steps += bool(self.decay)
        return weight

    @torch.no_grad()
    def update(self) -> None:
        """Update the moving average with the model's weights after a training step."""
        if not self.decay:
            return
        averages, newest = _here(self.weights.values()), _here(self._newest.values())
        if self.weight is None:
            torch._foreach_lerp_(averages, newest, self.next_weight())
        else:
            steps = torch._foreach_sub(newest, averages)
            torch._foreach_mul_(steps, self.weight)
            torch._foreach_add_(averages, steps)

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """Context manager: yield the model in evaluation mode with averaged weights.

        At the end the model gets its own weights back. Buffers stay as they are: running means of a
        normalisation are averages already.
        """
        model = self._model.eval()
        if not self.decay:
            yield model
            return
        with torch.no_grad():
            kept = [weight.clone() for weight in _here(self._newest.values())]
            torch._foreach_copy_(_here(self._newest.values()), _here(self.weights.values()))
        try:
            yield model
        finally:
            with torch.no_grad():
                torch._foreach_copy_(_here(self._newest.values()), kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the moving average for a checkpoint: number of steps, and averaged weights."""
        return {"steps": self.steps, "weights": self.weights}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average from a checkpoint; weights it lacks are copied from the model."""
        self.steps = state["steps"]
        for name, weight in self.weights.items():
            weight.copy_(state["weights"].get(name, self._newest[name]))


def _here(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shard of each tensor; writing to it changes the tensor."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
