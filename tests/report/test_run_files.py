"""The report reads a run directory as it is found, whatever is missing or torn."""

import json

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.run_files import read_run


def test_reads_all_of_a_finished_run(finished):
    run = read_run(finished.directory)
    assert run.trials.set_index("trial")["state"].to_dict() == finished.states
    assert [(s.kind, s.number, s.rung) for s in run.segments] == [
        (s["kind"], s["number"], s["rung"]) for s in finished.segments
    ]
    assert run.config.rungs == (3, 9, 20)
    assert run.ensemble is not None and run.graphs is not None and run.nodes is not None
    assert run.graphs.attrs["units"]["energy_mean"] == "eV"


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_torn_last_line_is_left_out(searching, kept):
    path = searching.directory / "segments.jsonl"
    whole = read_run(searching.directory).segments
    assert len(whole) == len(searching.segments)
    line = json.dumps(searching.segments[0])
    with path.open("a") as file:
        file.write(line[:kept])
    assert read_run(searching.directory).segments == whole


def test_damage_elsewhere_is_an_error_naming_the_line(searching):
    path = searching.directory / "segments.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1][:50] + "\n"
    path.write_text("".join(lines))
    with pytest.raises(InputError, match=r"segments\.jsonl: line 2 is damaged"):
        read_run(searching.directory)


@pytest.mark.parametrize("content", [None, ""])
def test_no_segments_before_the_first_one_ends(searching, content):
    path = searching.directory / "segments.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert read_run(searching.directory).segments == []


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"run\.yaml: cannot be read"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["ensemble/ensemble.json", "predictions/test.parquet"])
def test_damaged_results_are_named(searching, name):
    path = searching.directory / name
    path.parent.mkdir()
    path.write_bytes(b"{half")
    with pytest.raises(InputError, match=path.name):
        read_run(searching.directory)
