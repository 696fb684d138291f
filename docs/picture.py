"""Make the picture of the README from a finished quickstart: `python docs/picture.py`.

Figures of the run's report side by side: parity of the test split, and which device ran what.
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from hydragnn_flow.report import figures
from hydragnn_flow.report.html import mpnn_types, test_targets
from hydragnn_flow.report.run_files import read_run

PICTURE = Path(__file__).with_name("images") / "quickstart.png"
_WIDTH = 1200  # pixels, twice what GitHub shows on a laptop
_COLOURS = 96


def main(run_directory: Path = Path("runs/quickstart")) -> None:
    """Write the picture."""
    run = read_run(run_directory)
    parities = [_drawn(figures.parity(target)[0]) for target in test_targets(run)]
    half = [
        image.resize((_WIDTH // len(parities), _scaled(image, _WIDTH // len(parities))))
        for image in parities
    ]
    occupancy = _drawn(figures.gcd_occupancy(run.segments, mpnn_types(run)))
    below = occupancy.resize((_WIDTH, _scaled(occupancy, _WIDTH)))
    picture = Image.new("RGB", (_WIDTH, half[0].height + below.height), "white")
    for position, image in enumerate(half):
        picture.paste(image, (position * image.width, 0))
    picture.paste(below, (0, half[0].height))
    picture.quantize(_COLOURS).save(PICTURE, optimize=True)


def _drawn(figure: Figure) -> Image.Image:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=192)
    return Image.open(file).convert("RGB")


def _scaled(image: Image.Image, width: int) -> int:
    return round(image.height * width / image.width)


if __name__ == "__main__":
    main()
