"""How this suite shares its files out between processes: groups together, a crash told and over."""

import subprocess
import sys
from pathlib import Path

CONFTEST = """
import importlib.util
spec = importlib.util.spec_from_file_location("suite", {path!r})
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)
pytest_xdist_make_scheduler = suite.pytest_xdist_make_scheduler
"""
GROUPED = """
import os, pathlib, pytest
@pytest.mark.xdist_group("together")
def test_it():
    with open({log!r}, "a") as log:
        print(os.environ["PYTEST_XDIST_WORKER"], file=log)
"""
CRASH = "import os\ndef test_before(): pass\ndef test_crash(): os._exit(9)\n"


def test_groups_stay_together_and_a_crash_is_one_red_test(tmp_path):
    conftest = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(path=str(conftest)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group\n")
    for number in range(30):
        (tmp_path / f"test_{number:02}.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_05.py").write_text(CRASH)
    for name in ("test_a", "test_b", "test_c", "test_d"):
        (tmp_path / f"{name}.py").write_text(GROUPED.format(log=str(tmp_path / "log")))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup"]
    options = ["--no-loadscope-reorder", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=300
    )
    assert "1 failed, 34 passed" in done.stdout, done.stdout
    assert "test_05.py::test_crash" in done.stdout
    workers = (tmp_path / "log").read_text().split()
    assert len(workers) == 4 and len({*workers}) == 1
