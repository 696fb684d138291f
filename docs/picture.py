"""Make the picture of the README from a finished quickstart: `python docs/picture.py`.

Predictions of the test split with their intervals, the search, and errors against what they were
predicted to be.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from PIL import Image

from hydragnn_flow.report.accuracy import TargetValues
from hydragnn_flow.report.html import RunFiles, read_run, test_targets
from hydragnn_flow.report.style import (
    BLUE,
    INK,
    ORANGE,
    PALETTE,
    RED,
    SOFT,
    new_figure,
    tidy,
    value_axis,
)

PICTURE = Path(__file__).with_name("images") / "quickstart.png"
_INCHES, _PIXELS_PER_INCH = (6.67, 5.6), 192  # twice what GitHub shows on a laptop
_COLOURS = 256
_SMALL = 8.5


def main(run_directory: Path = Path("runs/quickstart")) -> None:
    """Write the picture."""
    run = read_run(run_directory)
    assert run.ensemble is not None
    energy, forces = test_targets(run)  # the energy is per atom
    figure = new_figure(*_INCHES)
    grid = figure.add_gridspec(1, 2)
    left, right = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    upper, lower = left.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
    _predictions(upper, lower, energy, run.ensemble["coverage"])
    search, errors = right.subplots(2, 1)
    _search(search, run)
    _errors(errors, forces)
    left.align_ylabels()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_PIXELS_PER_INCH)
    picture = Image.open(file).convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
    picture.save(PICTURE, optimize=True)


def _predictions(upper: Axes, lower: Axes, energy: TargetValues, coverage: float) -> None:
    values = energy.table
    reference, mean = values["reference"] / 1000, values["mean"] / 1000
    ends = [reference.min(), reference.max()]
    upper.plot(ends, ends, color=SOFT, lw=1.2, zorder=1)
    upper.plot(reference, mean, "o", color=BLUE, ms=4.5, mew=0, alpha=0.8)
    upper.set_ylabel("predicted (eV/atom)")
    _title(upper, f"Energies of {len(mean)} test structures")
    lower.axhline(0, color=SOFT, lw=1.2, zorder=1)
    bars = np.array([values["mean"] - values["lo"], values["hi"] - values["mean"]])
    held = values["reference"].between(values["lo"], values["hi"])
    for inside, colour, word in ((held, BLUE, "hold the truth"), (~held, RED, "miss it")):
        if inside.any():
            lower.errorbar(
                reference[inside],
                values["error"][inside],
                yerr=bars[:, inside],
                fmt="o",
                ms=3,
                color=colour,
                elinewidth=1.1,
                alpha=0.85,
                label=f"{inside.sum()} {word}",
            )
    lower.legend(loc="upper center", ncols=2, fontsize=_SMALL, frameon=False, handletextpad=0.3)
    reach = 1.6 * float((values["error"].abs() + bars.max(axis=0)).max())
    lower.set(ylim=(-reach, reach), xlabel="reference (eV/atom)", ylabel="error (meV/atom)")
    _title(lower, f"Their {coverage * 100:g} % intervals")
    tidy(upper)
    tidy(lower)


def _search(axes: Axes, run: RunFiles) -> None:
    frame = run.trials
    types = frame["Architecture.mpnn_type"]
    for kind, colour in zip(sorted({*types.dropna()}), PALETTE, strict=False):
        own = frame[types == kind]
        axes.plot(own["trial"], own["value"], "o", color=colour, ms=6.5, mew=0, label=kind)
    complete = frame[frame["state"] == "complete"]
    best = [*complete["value"].cummin()]
    ends = [*complete["trial"], frame["trial"].max()]
    axes.step(
        ends, [*best, best[-1]], where="post", color=SOFT, lw=1.6, label="best so far", zorder=1
    )
    assert run.ensemble is not None
    chosen = frame[frame["trial"].isin({m["trial"] for m in run.ensemble["members"]})]
    look: dict[str, Any] = {"ms": 11, "mfc": "none", "mec": INK, "mew": 1.1, "ls": "none"}
    axes.plot(chosen["trial"], chosen["value"], "o", label="in the ensemble", **look)
    axes.set(xlabel="trial", ylabel="validation error")
    value_axis(axes, "y", frame["value"].dropna().to_numpy())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = axes.get_ylim()
    axes.set_ylim(top=high * (high / low) ** 0.5)  # room for the legend above all points
    places: dict[str, Any] = {"loc": "upper center", "handletextpad": 0.3, "columnspacing": 0.8}
    axes.legend(fontsize=_SMALL, frameon=False, ncols=2, **places)
    _title(axes, "The search")
    tidy(axes)


def _errors(axes: Axes, forces: TargetValues) -> None:
    error, std = forces.table["error"].abs().to_numpy(), forces.table["std"].to_numpy()
    axes.plot(std, error, "o", color=BLUE, ms=2, mew=0, alpha=0.25, rasterized=True)
    ends = np.quantile(std, [0.0, 1.0])
    axes.plot(ends, ends, color=SOFT, lw=1.4, label="equal")
    bins = np.array_split(np.argsort(std), 10)
    roots = [[np.sqrt(np.mean(of[part] ** 2)) for part in bins] for of in (std, error)]
    axes.plot(*roots, "D-", color=ORANGE, ms=5, lw=1.4, label="root mean square")
    value_axis(axes, "x", std)
    axes.set(yscale="log", ylim=(ends[0] / 30, None))
    axes.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    axes.set(xlabel="predicted deviation (eV/Å)", ylabel="error of forces (eV/Å)")
    axes.legend(fontsize=_SMALL, frameon=False, loc="lower right", handletextpad=0.3)
    _title(axes, "Errors against error bars")
    tidy(axes)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold", color=INK)


if __name__ == "__main__":
    main()
