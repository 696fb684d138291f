"""Run directories and sites that Parsl cannot take are refused before anything starts."""

import os
import resource
import string
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pool_cases import site

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.pool import Pool, _check_name

HERE = site()


def test_a_name_that_parsl_cannot_take_is_refused_before_anything_starts(tmp_path):
    for character in " {$';(\n":
        run = tmp_path / f"a{character}b" / "run"
        with pytest.raises(InputError) as caught:
            Pool(HERE, run / "parsl")
        assert str(caught.value).startswith(f"{run}: ")
        assert f"takes no {character!r} in a path; choose a directory" in str(caught.value)
        assert not run.exists()


@pytest.mark.parametrize(
    ("scheduler", "refused"), [(None, ""), ("slurm", "%"), ("pbs", ":%")]
)  # Slurm has patterns with %, PBS writes HOST:PATH
def test_what_a_scheduler_reads_otherwise_is_refused_there(scheduler, refused):
    for character in ":%":
        refusal = pytest.raises(InputError, match=f"takes no '{character}'")
        with refusal if character in refused else nullcontext():
            _check_name(replace(HERE, scheduler=scheduler), Path(f"/runs/12{character}30/parsl"))


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
    command = f"printf '[%s]' --logdir={text} {text}"
    said = subprocess.check_output(["bash", "-c", command], cwd="/")
    assert os.fsdecode(said) == f"[--logdir={text}][{text}]"


def test_more_nodes_than_the_hard_limit_of_files_allows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    many = replace(HERE, nodes=8192)
    with pytest.raises(InputError, match=r"site here: 8192 nodes take 8292 .* may have 4096"):
        Pool(many, tmp_path / "parsl")
    assert not (tmp_path / "parsl").exists()
    Pool(replace(HERE, nodes=3996), tmp_path / "parsl")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    Pool(many, tmp_path / "parsl")
