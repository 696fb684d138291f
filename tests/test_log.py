"""`driver.log`: one line per decision, appended, and never in the way of a campaign."""

import errno
import io
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow import log
from hydragnn_flow.log import FILE, MOST_CHARACTERS, driver_log, last_lines, tell

logger = logging.getLogger("hydragnn_flow.execution.pools.blocks")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} [A-Z]+ +[\w.]+: .*")


def unexpected(text):
    raise AssertionError(f"shown: {text}")


def lines_of(run_directory):
    return (run_directory / FILE).read_text(encoding="utf-8").splitlines()


def test_what_the_user_is_to_read_is_shown_and_logged(tmp_path):
    shown: list[str] = []
    package = logging.getLogger("hydragnn_flow")
    before = package.level, list(package.handlers), package.propagate
    assert last_lines(tmp_path, 20) == []
    with driver_log(tmp_path, shown.append):
        logger.info("asked for %d blocks: %d workers wanted", 2, 16)
        logger.debug("nobody asked")
        tell(logger, "waiting for %s", "2 blocks")
        logger.warning("a worry")
    assert (package.level, package.handlers, package.propagate) == before
    assert shown == ["waiting for 2 blocks", "a worry"]
    decided = lines_of(tmp_path)[1]
    assert LINE.fullmatch(decided)
    assert decided.endswith("INFO    execution.pools.blocks: asked for 2 blocks: 16 workers wanted")
    assert [line.split()[2] for line in lines_of(tmp_path)] == [
        *("INFO", "INFO", "NOTICE", "WARNING", "INFO")
    ]


def test_a_large_log_is_put_aside_and_the_oldest_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "_LARGEST", 500)
    with driver_log(tmp_path, unexpected):
        for number in range(100):
            logger.info("decision %d", number)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [FILE, *(f"{FILE}.{number}" for number in range(1, 5))]
    assert all(file.stat().st_size < 700 for file in tmp_path.iterdir())
    lines = [
        line
        for number in (4, 3, 2, 1)
        for line in (tmp_path / f"{FILE}.{number}").read_text().splitlines()
    ] + lines_of(tmp_path)
    decided = [int(line.rpartition(" ")[2]) for line in lines if " decision " in line]
    assert decided == [*range(decided[0], 100)]
    assert last_lines(tmp_path, 4) == lines[-4:]


def test_a_later_driver_appends_and_says_why_the_earlier_one_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt), driver_log(tmp_path, unexpected):
        raise KeyboardInterrupt
    with driver_log(tmp_path, unexpected):
        pass
    lines = lines_of(tmp_path)
    assert len(lines) == 4
    assert re.search(r"driver stopped: process \d+ on \S+: KeyboardInterrupt", lines[1])


def test_handlers_of_a_users_script_are_spared(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with driver_log(tmp_path, unexpected):
        logger.info("a detail")
    assert not caplog.records
    logger.warning("a worry")
    assert caplog.messages == ["a worry"]


def test_half_a_line_of_a_killed_driver_spoils_no_other(tmp_path):
    (tmp_path / FILE).write_text("whole\n2026-11-23 09:00:00+0000 INFO    campaign.tri")
    with driver_log(tmp_path, unexpected):
        logger.info("the next")
    whole, half, *others = lines_of(tmp_path)
    assert (whole, half.endswith("campaign.tri")) == ("whole", True)
    assert all(map(LINE.fullmatch, others))
    assert len(others) == 3


@given(st.text(), st.text())
def test_every_message_is_one_line_of_bounded_length(tmp_path_factory, text, more):
    folder = tmp_path_factory.mktemp("run")
    with driver_log(folder, unexpected):
        logger.info("%s\n%s", text, 100 * more)
        try:
            raise ValueError(text)
        except ValueError:
            logger.exception("it failed: %s", more, extra={})
    raw = (folder / FILE).read_bytes()
    assert raw.count(b"\n") == 4
    assert all(len(line.decode()) < MOST_CHARACTERS + 200 for line in raw.split(b"\n"))


def test_errors_of_parsl_are_logged_in_a_line(tmp_path):
    parsl = logging.getLogger("parsl.providers.slurm.slurm")
    with driver_log(tmp_path, unexpected):
        try:
            raise OSError("no sbatch")
        except OSError:
            parsl.exception("Submit command failed")
    said = "parsl.providers.slurm.slurm: Submit command failed (OSError: no sbatch)"
    assert said in lines_of(tmp_path)[1]


class Full(io.FileIO):
    """A file on a disk that takes a few bytes more, then none, until there is room again."""

    room: int

    def write(self, content):
        if Full.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = content[: Full.room]
        Full.room -= len(taken)
        return super().write(taken) or 0


def test_a_full_disk_costs_lines_that_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(log.Path, "open", lambda path, mode, **_: Full(path, mode))
    Full.room = 1 << 20
    with driver_log(tmp_path, unexpected):
        logger.info("first")
        Full.room = 10
        logger.info("torn in its time")
        logger.info("lost whole")
        Full.room = 1 << 20
        logger.info("room again")
    monkeypatch.undo()
    lines = lines_of(tmp_path)
    assert lines[1].endswith("first")
    assert len(lines[2]) == 10
    assert lines[3] == "(2 lines are missing here: the disk did not take them)"
    assert lines[4].endswith("room again")
    assert LINE.fullmatch(lines[5])


def test_a_directory_that_is_gone_or_a_display_that_fails_stops_nobody(tmp_path, capsys):
    with driver_log(tmp_path / "gone", unexpected):
        logger.info("not written")
    assert not (tmp_path / "gone").exists()

    def fail(text):
        raise BrokenPipeError

    with driver_log(tmp_path, fail):
        tell(logger, "nobody reads this")
    assert lines_of(tmp_path)[1].endswith("nobody reads this")
    assert "BrokenPipeError" in capsys.readouterr().err


def test_a_name_that_is_no_text_is_escaped(tmp_path, monkeypatch):
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handler takes only text
    handlers = logging.getLogger("hydragnn_flow").handlers
    with driver_log(tmp_path, unexpected):
        monkeypatch.setattr(logger, "handlers", list(handlers))
        logger.info("%s cannot be read", "trial-\udcff")
    assert r"trial-\udcff cannot be read" in lines_of(tmp_path)[1]
