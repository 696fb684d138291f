"""Fits networks to recorded trainings and packs both into one file.

    python -m search_race.recorded.fit alloys --work DIR             (in the folder benchmarks)

It takes a minute or two, and says how well networks foresee trainings that they have not seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.space import distributions, suggest
from search_race.recorded.record import SEEDS, Record, near, read
from search_race.recorded.surrogate import Surrogate, encoded
from search_race.recorded.tasks import TASKS, Task

Array = NDArray[np.float64]

_MEMBERS, _WIDTH = 5, 64
_STEPS, _BATCH, _RATE, _DECAY = 6000, 128, 3e-3, 0.03
_LOOK_EVERY = 100
_WORST = 0.97
"""Losses beyond this share of the random ones count as it: how far one diverges is no matter."""
_CURVE_POINTS = 27
"""Largest number of points of a curve that are kept."""
_SOUGHT, _KEPT, _ROUNDS = 30_000, 200, 60


def main(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    work: Annotated[Path, typer.Option(help="Directory of the records.")],
) -> None:
    """Fit, look for the smallest loss, and write the file."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    chosen = TASKS[task]
    records = read(work, task)
    if len(records) < chosen.drawn + chosen.near + chosen.again:
        raise SystemExit(
            f"{len(records)} trainings are recorded; let search_race.recorded.record end"
        )
    path = chosen.file
    held = _curves(records, chosen) | _networks(records, chosen)
    np.savez_compressed(path, allow_pickle=False, **held, best=np.float64(0))
    best, params = _smallest(Surrogate(path, chosen.space), chosen.space, records)
    np.savez_compressed(path, allow_pickle=False, **held, best=np.float64(best))
    seen = min(_final(record) for record in records)
    print(f"smallest loss {best:.5g}, of those recorded {seen:.5g}; at {params}")
    print(f"scatter over seeds {float(held['scatter']):.3g}, {path.stat().st_size / 1e3:.0f} kB")


def _final(record: Record) -> float:
    return min((loss for loss in record["losses"] if loss is not None), default=math.inf)


def _curves(records: Sequence[Record], task: Task) -> dict[str, Any]:
    """Recorded trainings, reduced to what is used."""
    every = max(1, task.epochs // _CURVE_POINTS)
    losses = np.array([record["losses"] for record in records], dtype=float)[:, every - 1 :: every]
    domains = distributions(task.space)
    params = np.array(
        [
            [
                domains[name].to_internal_repr(record["params"][name])
                if name in record["params"]
                else math.nan
                for name in task.space
            ]
            for record in records
        ]
    )
    return {
        "params": params.astype(np.float32),
        "log_losses": np.log(losses).astype(np.float16),
        "seconds": np.array([record["seconds"] for record in records]).astype(np.float16),
    }


def _targets(records: Sequence[Record], task: Task) -> Array:
    """Logarithms of the smallest loss up to each rung and of the time, [n_records, n_rungs + 1]."""
    losses = np.array([record["losses"] for record in records], dtype=float)
    smallest = np.fmin.accumulate(losses, axis=1)[:, np.array(task.rungs) - 1]
    worst = np.nanquantile(smallest[: task.drawn], _WORST, axis=0)
    smallest = np.where(np.isfinite(smallest), np.minimum(smallest, worst), worst)
    seconds = np.array([record["seconds"] for record in records])
    return np.asarray(np.log(np.column_stack([smallest, seconds])))


def _networks(records: Sequence[Record], task: Task) -> dict[str, Any]:
    x = encoded([record["params"] for record in records], task.space)
    y = _targets(records, task)
    again = y[-task.again :, -2].reshape(-1, SEEDS)
    shift, scale = y.mean(0), y.std(0)
    z = (y - shift) / scale
    # Trainings of one configuration with several seeds are in the same fold.
    fold = np.random.default_rng(0).permutation(len(z)) % _MEMBERS
    fold[-task.again :] = np.repeat(np.arange(task.again // SEEDS) % _MEMBERS, SEEDS)
    foreseen, members = np.empty_like(z), []
    for member in range(_MEMBERS):
        test = fold == member
        layers = _fitted(x[~test], z[~test], x[test], z[test], seed=member)
        members.append([part.detach().numpy() for part in layers])
        foreseen[test] = _forward(torch.tensor(x[test]), layers).detach().numpy()
    off = (foreseen - z)[:, -2]
    good = z[:, -2] < np.quantile(z[:, -2], 0.25)
    print(f"{task.name}: {len(z)} trainings; of trainings not seen:")
    print(
        f"  R² of the logarithm {1 - np.mean(off**2):.3f}, of the time "
        f"{1 - np.mean((foreseen - z)[:, -1] ** 2):.3f}"
    )
    print(
        f"  Spearman's correlation {spearmanr(foreseen[:, -2], z[:, -2])[0]:.3f}, of the best "
        f"quarter {spearmanr(foreseen[good, -2], z[good, -2])[0]:.3f}"
    )
    print(
        f"  off by {off.std() * scale[-2]:.3f}, in the best quarter by "
        f"{off[good].std() * scale[-2]:.3f}"
    )
    stacked = [np.stack(parts) for parts in zip(*members, strict=True)]
    return {
        **{f"weights{i}": stacked[2 * i].astype(np.float16) for i in range(3)},
        **{f"offsets{i}": stacked[2 * i + 1].astype(np.float16) for i in range(3)},
        "shift": shift,
        "scale": scale,
        "scatter": np.sqrt(again.var(axis=1, ddof=1).mean()),
        "median_seconds": np.exp(np.median(y[: task.drawn, -1])),
    }


def _fitted(x: Array, z: Array, x_test: Array, z_test: Array, seed: int) -> list[torch.Tensor]:
    """Layers of a perceptron, as they were when they foresaw what they had not seen best."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [x.shape[1], _WIDTH, _WIDTH, z.shape[1]]
    layers: list[torch.Tensor] = []
    for inputs, outputs in itertools.pairwise(sizes):
        weights = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64)
        layers += [weights * inputs**-0.5, torch.zeros(outputs, dtype=torch.float64)]
    for part in layers:
        part.requires_grad_()
    inputs_seen, targets = torch.tensor(x), torch.tensor(z)
    steps = torch.optim.AdamW(layers, _RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(steps, _STEPS)
    least, kept = math.inf, layers
    for step in range(_STEPS):
        batch = torch.randint(len(x), (_BATCH,), generator=generator)
        loss = ((_forward(inputs_seen[batch], layers) - targets[batch]) ** 2).mean()
        steps.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
        schedule.step()
        if step % _LOOK_EVERY == _LOOK_EVERY - 1:
            with torch.no_grad():
                off = _forward(torch.tensor(x_test), layers) - torch.tensor(z_test)
            if float((off**2).mean()) < least:
                least = float((off**2).mean())
                kept = [part.detach().clone() for part in layers]
    return kept


def _forward(held: torch.Tensor, layers: Sequence[torch.Tensor]) -> torch.Tensor:
    silu = torch.nn.functional.silu
    held = silu(held @ layers[0] + layers[1])
    held = silu(held @ layers[2] + layers[3])
    return held @ layers[4] + layers[5]


def _smallest(
    surrogate: Surrogate, space: Mapping[str, Parameter], records: Sequence[Record]
) -> tuple[float, dict[str, Any]]:
    """The smallest loss that can be found, and where it is."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    trials = [suggest(study.ask(), space) for _ in range(_SOUGHT)]
    trials += [record["params"] for record in records]
    rng = np.random.default_rng(0)
    losses = surrogate.losses(trials)[:, -1]
    for number in range(_ROUNDS):
        order = np.argsort(losses)[:_KEPT]
        trials, losses = [trials[i] for i in order], losses[order]
        step = 0.2 * 0.9**number
        more = [near(space, trial, rng, number, step) for trial in trials for _ in range(20)]
        trials += more
        losses = np.concatenate([losses, surrogate.losses(more)[:, -1]])
    first = int(np.argmin(losses))
    return float(losses[first]), trials[first]


if __name__ == "__main__":
    typer.run(main)
