"""Draw docs/images/outside.png from docs/results/outside.json: `make docs`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hydragnn_flow.report.style import BLUE, INK, new_figure, tidy

HERE = Path(__file__).parent


def main() -> None:
    """Draw errors and error bars by kind of structure, of the sets with many kinds."""
    details = json.loads((HERE / "results" / "outside.json").read_text(encoding="utf-8"))["details"]
    figure = new_figure(9.0, 3.8)
    sets = ("EMT", "Tersoff")
    for axes, name in zip(figure.subplots(1, len(sets)), sets, strict=True):
        found = [one for one in details if one["set"] == name]
        of_each = np.concatenate([one["kind"] for one in found])
        kinds = list(dict.fromkeys(of_each))
        for values, label, colour in (("error", "error", INK), ("std", "error bar", BLUE)):
            of_kinds = np.concatenate([one[values] for one in found])
            quantiles = [np.quantile(of_kinds[of_each == kind], [0.1, 0.5, 0.9]) for kind in kinds]
            low, middle, high = np.transpose(quantiles)
            shift = 0.15 if values == "std" else -0.15
            axes.errorbar(
                np.arange(len(kinds)) + shift,
                middle,
                [middle - low, high - middle],
                fmt="o",
                color=colour,
                label=label,
                markersize=3.5,
                linewidth=1,
            )
        axes.set_yscale("log")
        axes.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right", fontsize=7.5)
        axes.set_title(name, loc="left", fontsize=9)
        axes.set_ylabel("energy [eV/atom]")
        tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(HERE / "images" / "outside.png", dpi=120)


if __name__ == "__main__":
    main()
