"""The page in a real browser: light and dark, on a desk and a phone."""

import html
import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here: apt install chromium"),
    pytest.mark.xdist_group("chromium"),
]
# The page is in a frame, whose size is free and where its own policy holds.
FRAME = """
<body><script type="module">
const frame = document.body.appendChild(document.createElement("iframe"));
Object.assign(frame, {width: %d, height: 900, srcdoc: %s});
await new Promise(loaded => { frame.onload = loaded; });
const window = frame.contentWindow, page = window.document;
document.body.replaceChildren(JSON.stringify(await (async () => { %s })()));
</script></body>
"""


@pytest.fixture
def browse(report, tmp_path):
    """What lines of JavaScript return that are run beside the page."""

    def run(lines, width=1280, *options):
        srcdoc = json.dumps(report.read_text()).replace("</", "<\\/")
        file = tmp_path / "frame.html"
        file.write_text(FRAME % (width, srcdoc, lines))
        done = subprocess.run(
            [
                *(PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"),
                *("--virtual-time-budget=60000", f"--user-data-dir={tmp_path}", *options),
                *("--dump-dom", file.as_uri()),
            ],
            capture_output=True,
            timeout=120,
            env={"HOME": str(tmp_path)},
            check=True,
        )
        _, _, said = done.stdout.decode().partition("<body>")
        return json.loads(html.unescape(said.partition("</body>")[0]))

    return run


@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_and_fits_in_light_and_dark(browse, width):
    is_dark = width == 390
    figures, whole, background = browse(
        """
        const figures = [...page.querySelectorAll("figure")].map(figure => {
          const image = figure.querySelector("img"), box = figure.getBoundingClientRect();
          const canvas = document.createElement("canvas");
          canvas.width = canvas.height = 64;
          const ink = canvas.getContext("2d");
          ink.drawImage(image, 0, 0, 64, 64);
          const shades = new Set(new Uint32Array(ink.getImageData(0, 0, 64, 64).data.buffer));
          return [box.left, box.right, box.height, shades.size, figure.scrollWidth - box.width];
        });
        const background = window.getComputedStyle(page.body).backgroundColor;
        return [figures, page.documentElement.scrollWidth, background.match(/\\d+/g).map(Number)];
        """,
        width,
        *["--blink-settings=preferredColorScheme=0"] * is_dark,
    )
    assert len(figures) == 10
    for left, right, tall, shades, hidden in figures:
        assert 0 <= left < right <= width and tall > 100
        assert hidden < 1, "all of it is seen"
        assert shades > 20, "a picture that is not one colour"
    assert whole <= width
    assert (sum(background) < 200) == is_dark


FILTERS: dict[str, Callable[[dict[str, str]], bool]] = {
    "complete": lambda row: row["state"] == "complete",
    "hidden_dim>=32 pna": lambda row: int(row["hidden_dim"]) >= 32 and "PNA" in row.values(),
    "seconds>9": lambda row: float(row["seconds [s]"]) > 9,
    "mpnn_type=schnet": lambda row: row["mpnn_type"] == "SchNet",
    "nothing like it": lambda row: False,
}


def test_trials_are_filtered_and_sorted_with_gaps_last(browse):
    headings, filtered, ways = browse(f"""
      const input = page.querySelector("#trials input");
      const table = page.querySelector("#trials table");
      const words = row => [...row.cells].map(cell => cell.textContent);
      const rows = () => [...table.tBodies[0].rows];
      const filtered = {json.dumps([*FILTERS])}.map(asked => {{
        input.value = asked;
        input.dispatchEvent(new window.Event("input"));
        return rows().map(row => [...words(row), row.hidden]);
      }});
      const headings = words(table.tHead.rows[0]), column = headings.indexOf("num_gaussians");
      const ways = [1, -1].map(() => {{
        table.tHead.rows[0].cells[column].querySelector("button").click();
        return rows().map(row => words(row)[column]);
      }});
      return [headings, filtered, ways];
    """)
    for (asked, holds), rows in zip(FILTERS.items(), filtered, strict=True):
        assert len(rows) == 32
        for *cells, hidden in rows:
            assert hidden != holds(dict(zip(headings, cells, strict=True))), asked
    for sign, cells in zip((1, -1), ways, strict=True):
        known = [int(cell) for cell in cells if cell]
        assert known == sorted(known, key=lambda value: sign * value) and len(set(known)) > 1
        assert cells[len(known) :] == [""] * (32 - len(known))
