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
    """Draw losses at the rung and at the end; the line has the best third on its left."""
    function = load(TABLE)
    rung, end = function.epochs[-2:]
    found: list[tuple[float, float, int]] = []
    clock = Clock()
    engine = make_engine("auto", function, (rung, end), TRIALS, 0, None, clock)
    for number in range(TRIALS):
        ((key, params),) = engine.ask(1)
        at_rung, at_end = function.observed(params, 0, key)[-2:]
        clock.now += 600.0  # [s], long enough to wait for predictions
        continues = engine.report(key, rung, at_rung)
        found.append((at_rung, at_end, 2 if number < EXAMPLES else int(continues)))
        if continues:
            engine.report(key, end, at_end)
    engine.close()
    figure = new_figure(5.4, 3.4)
    axes = figure.subplots()
    x, y, verdicts = np.array(found).T
    axes.axvline(np.quantile(x, 1 / 3), color=FAINT, zorder=0)
    for verdict, (label, colour) in enumerate(VERDICTS.items()):
        some = verdicts == verdict
        axes.plot(x[some], y[some], "o", color=colour, markersize=3.5, label=label)
    axes.set_xlabel(f"loss after {rung} epochs")
    axes.set_ylabel(f"loss after {end} epochs")
    tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(HERE / "images" / "rungs.png", dpi=120)


if __name__ == "__main__":
    main()
