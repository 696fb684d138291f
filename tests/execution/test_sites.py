"""Site files: what ships, and what a user's own may get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site, shipped_sites, sole_driver


@pytest.mark.parametrize("name", sorted(shipped_sites()))
def test_shipped_sites_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A cluster's network interface, which this machine need not have.
    monkeypatch.setattr("parsl.addresses.address_by_interface", lambda interface: "127.0.0.1")
    site = load_site(name)
    config = site.parsl_config(tmp_path)
    executors = {executor.label: executor for executor in config.executors}
    assert set(executors) == {"gcd", "node"}
    assert all(executor.encrypted for executor in executors.values())
    assert executors["gcd"].max_workers_per_node == len(site.node.gcds)
    assert executors["node"].max_workers_per_node == 1


def test_a_copied_site_file_works(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(shipped_sites()["local"].read_text())
    assert load_site(mine).nodes == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def site(:", "SyntaxError"),
        ("x = 1", "no attribute 'site'"),
        ("def site():\n    return 3", "must return"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_a_wrong_site_file_is_named(tmp_path: Path, content: str, says: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(content)
    with pytest.raises(InputError, match=says) as error:
        load_site(mine)
    assert "mine.py" in str(error.value)


def test_an_unknown_site_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match="local"):
        load_site("frontire")


def test_one_driver_per_run(tmp_path: Path) -> None:
    with (
        sole_driver(tmp_path),
        pytest.raises(InputError, match="is being worked on"),
        sole_driver(tmp_path),
    ):
        pass
