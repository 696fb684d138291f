"""Run directories whose names would be others in Parsl's commands are refused, the rest work."""

import os
import string
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pool_cases import site

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.pool import Pool, _check_name


@pytest.mark.parametrize(
    ("name", "character"),
    [
        ("my runs", "' '"),
        ("a{b}", "'{'"),
        ("cost$", r"'\$'"),
        ("it's", '"\'"'),
        ("a;b", "';'"),
        ("(1)", r"'\('"),
        ("two\nlines", r"'\\n'"),
    ],
)
def test_a_name_that_parsl_cannot_take_is_refused_before_anything_starts(tmp_path, name, character):
    run = tmp_path / name / "run"
    with pytest.raises(
        InputError, match=rf"takes no {character} in a path; choose a directory"
    ) as caught:
        Pool(site(), run / "parsl")
    assert str(caught.value).startswith(str(run))
    assert not run.exists()


@pytest.mark.parametrize(
    ("scheduler", "refused"), [(None, ""), ("slurm", "%"), ("pbs", ":%")]
)  # Slurm has patterns with %, PBS writes HOST:PATH
def test_what_a_scheduler_reads_otherwise_is_refused_there(scheduler, refused):
    for character in ":%":
        directory = Path(f"/runs/12{character}30/parsl")
        if character in refused:
            with pytest.raises(InputError, match=f"takes no '{character}'"):
                _check_name(replace(site(), scheduler=scheduler), directory)
        else:
            _check_name(replace(site(), scheduler=scheduler), directory)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("läufe/2026-01-01T12:00,lr=1e-3@50%+x_y~")
@example("läufe/2026-01-01T12:00,lr=1e-3@50%+x_y")
def test_a_name_that_is_taken_stands_for_itself_wherever_parsl_puts_it(name):
    path = Path("/runs") / name.replace("\0", "0")
    try:
        _check_name(HERE, path)
    except InputError:
        return
    text = str(path)
    assert text.format().format() == text
    assert string.Template(text).substitute() == text
    said = subprocess.run(
        ["bash", "-c", f"printf '[%s]' --logdir={text} {text}"],
        stdout=subprocess.PIPE,
        check=True,
        cwd="/",
    ).stdout
    assert os.fsdecode(said) == f"[--logdir={text}][{text}]"


HERE = site()
