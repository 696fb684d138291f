"""Internals of Parsl that the package uses: each is there, and none is used that is not listed."""

import ast
import re
from pathlib import Path

import pytest

import hydragnn_flow
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import parsl_internals as internals

PACKAGE = Path(hydragnn_flow.__file__).parent
# Documented names, which the other modules may import from Parsl.
DOCUMENTED = {"parsl", "parsl.executors", "parsl.launchers", "parsl.providers"}
OWNERS = {owner.__name__: owner for owner in internals.USED}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(one.__name__, n) for one, names in internals.USED.items() for n in names.split()],
)
def test_it_is_there(owner, name):
    assert name in internals._attributes(OWNERS[owner])


def test_only_documented_names_are_imported_elsewhere():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found = {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}
        used = {module for module in found if module.partition(".")[0] == "parsl"}
        assert path.name == "parsl_internals.py" or used <= DOCUMENTED, path


def test_what_is_used_of_executors_and_providers_is_listed():
    listed = {name for names in internals.USED.values() for name in names.split()}
    for name in ("pools/parsl_executor.py", "sites/preview.py", "sites/own_config.py"):
        text = (PACKAGE / "execution" / name).read_text(encoding="utf-8")
        used = re.findall(r"\b(?:_?executor|_?provider|made)\.(\w+)", text)
        assert not {*used} - listed - {"replace"}, name


def test_another_version_is_said_in_a_sentence(monkeypatch, caplog):
    caplog.set_level("INFO")
    internals.check_parsl()
    assert not caplog.messages, "the installed version was not tested"
    monkeypatch.setattr(internals, "VERSION", "2026.11.2")
    internals.check_parsl()
    assert caplog.messages == [
        "Parsl 2026.11.2 is none of the versions tested with this package; "
        "install 'parsl>=2026.10.19,<2026.11'"
    ]
    monkeypatch.setitem(internals.USED, internals.TaskScheduler, "put_task get_answer")
    with pytest.raises(
        InputError, match=r"^Parsl 2026.11.2: has no TaskScheduler.get_answer; inst"
    ):
        internals.check_parsl()


def test_the_installation_is_bounded_alike():
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert '"parsl>={},<{}"'.format(*internals.TESTED) in text
