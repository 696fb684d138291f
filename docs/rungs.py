"""Draw docs/images/rungs.png, verdicts of a search on a recorded table: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from hydragnn_flow.report.style import BLUE, FAINT, PALE, RED, new_figure, tidy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))
from search_race.engines import Clock, make_engine  # noqa: E402
from search_race.functions import load  # noqa: E402

TRIALS, EXAMPLES, TABLE = 90, 8, "perovskites"
VERDICTS = {"stops": RED, "continues": BLUE, "continues as an example": PALE}


def main() -> None:
    """Draw losses at each rung and at the end; the line has the best third on its left."""
    function = load(TABLE)
    epochs = function.epochs
    rungs: list[list[tuple[float, float, bool]]] = [[] for _ in epochs[:-1]]
    clock = Clock()
    engine = make_engine("auto", function, epochs, TRIALS, 0, None, clock)
    for _ in range(TRIALS):
        ((key, params),) = engine.ask(1)
        losses = function.observed(params, 0, key)
        for rung, epoch in enumerate(epochs):
            clock.now += 600.0  # [s], long enough to wait for predictions
            continues = engine.report(key, epoch, losses[rung])
            if epoch != epochs[-1]:
                rungs[rung].append((losses[rung], losses[-1], continues))
            if not continues:
                break
    engine.close()
    figure = new_figure(9.0, 3.4)
    for axes, epoch, found in zip(figure.subplots(1, len(rungs)), epochs, rungs, strict=False):
        now, end, verdicts = np.array(found).T
        verdicts[:EXAMPLES] = 2
        axes.axvline(np.quantile(now, 1 / 3), color=FAINT, zorder=0)
        for verdict, (label, colour) in enumerate(VERDICTS.items()):
            some = verdicts == verdict
            axes.plot(now[some], end[some], "o", color=colour, markersize=3.5, label=label)
        axes.set_xlabel(f"loss after {epoch} epochs")
        axes.set_ylabel(f"loss after {epochs[-1]} epochs")
        tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(HERE / "images" / "rungs.png", dpi=120)


if __name__ == "__main__":
    main()
