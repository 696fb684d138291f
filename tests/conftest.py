"""Fixtures every room's tests share, and how tests are shared out between processes."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadGroupScheduling

from hydragnn_flow.garbage import no_collection

if TYPE_CHECKING:
    from hydragnn_flow.data import GraphStore

# How long an example takes says how loaded the machine is, and nothing of the code. The examples
# of `fixed` are the same every time; `make test-random` looks for new ones.
settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random", settings.get_profile("fixed"), derandomize=False, max_examples=300, print_blob=True
)
settings.load_profile("fixed")
# Neither do they depend on the constants in whatever modules other tests have imported.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = providers.Constants

# Campaigns keep what they learn of costs in the user's cache: each test has one of its own.
_CACHES = tempfile.TemporaryDirectory(prefix="hydragnn_flow-tests-")
_numbers = itertools.count()
# The one thing that is wanted of the user's: to find all fonts again takes matplotlib seconds.
_USERS_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
os.environ.setdefault("MPLCONFIGDIR", str(_USERS_CACHE / "matplotlib"))
os.environ["XDG_CACHE_HOME"] = f"{_CACHES.name}/session"

# The two or so cores of a laptop belong to the processes under test, one thread each.
os.environ["OMP_NUM_THREADS"] = "1"
# Processes that tests start, those of xdist among them, have their sets in the same order.
os.environ.setdefault("PYTHONHASHSEED", "0")
# readline sets these for every process that pytest starts; rich would take them for a terminal's.
# Without bytecode on disk each of hundreds of processes would compile the package.
for name in ("COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)

# A shell's `&` leaves it ignored, in all processes that follow; tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]

MOST_PROCESSES = 2
"""Tests that start processes of their own need the other cores; `-n` asks for more."""

LONGEST = ("tutorial", "environments")
"""Groups that take the longest, about a quarter of an hour each."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hydragnn",
        type=Path,
        metavar="PATH",
        help="checkout of HydraGNN, whose own reader is then to open our stores",
    )
    parser.addoption(
        "--device",
        choices=("cuda", "xpu", "cpu"),
        help="where tests/gpu compute; by default an accelerator, if torch sees one",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hydragnn") and config.rootpath != REPOSITORY:
        # Before it knows this option, pytest takes a path after a blank for one with tests.
        raise pytest.UsageError("write --hydragnn=PATH, with the sign, for the settings to be ours")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process per core, and none beside pytest's own for tests of a single file."""
    paths = {config.invocation_params.dir / arg.partition("::")[0] for arg in config.args}
    if len(paths) == 1 and all(path.is_file() for path in paths):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_PROCESSES)


class _ByFile(LoadGroupScheduling):
    """Tests of one file, or of files with the same `xdist_group`, run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]

    def remove_node(self, node: Any) -> str | None:
        """Give up what a process ran when it died: begun again, it would end the next one too."""
        given = self.assigned_work[node].values()
        crashed = next(
            (test for tests in given for test, is_done in tests.items() if not is_done), None
        )
        for tests in given:
            if crashed in tests:
                tests[crashed] = True
        super().remove_node(node)
        return crashed

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process files with two tests to run at least: it begins one when it has the next.

        The files of a process that died come back with all their tests, those that ran included.
        """
        super()._assign_work_unit(node)
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    return _ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without searches for garbage: the tests' modules, a million objects, stay."""
    with no_collection():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups of files take longest, so they come first, and the longest of them before all."""

    def turn(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        return 2 if group is None else int(group.args[0] not in LONGEST)

    items.sort(key=turn)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Numbers that nobody seeded do not depend on the tests before."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Nor on which test made the fixtures that several have."""
    pytest_runtest_setup()


@pytest.fixture(autouse=True)
def _cache_of_its_own() -> None:
    os.environ["XDG_CACHE_HOME"] = f"{_CACHES.name}/{next(_numbers)}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets kept beside a development checkout; not part of the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data sets in {folder}, which this machine does not have")
    return folder


@pytest.fixture(scope="session")
def alloy_store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    from hydragnn_flow.config import DataConfig
    from hydragnn_flow.data import prepare_store

    data = DataConfig.model_validate(
        {
            "source": {"format": "emt_alloys", "structures": 24, "atoms": [8, 16]},
            "split": {"val": 0.2, "test": 0.2},
        }
    )
    return prepare_store(data, 4.0, None, 0, tmp_path_factory.mktemp("data") / "store.gs")


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Has a disk not say whether a file is there, which Python 3.14 takes for no."""
    stat, exists = Path.stat, Path.exists

    def hide(file: Path) -> None:
        def stale(path: Path, **options: Any) -> os.stat_result:
            if path == file:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return stat(path, **options)

        monkeypatch.setattr(Path, "stat", stale)
        monkeypatch.setattr(Path, "exists", lambda path: path != file and exists(path))

    return hide
