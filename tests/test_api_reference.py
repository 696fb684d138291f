"""`make reference` builds a page for each public package, with all its public names."""

import importlib
import subprocess
import sys

import pytest
from page_cases import REPOSITORY


@pytest.mark.slow
def test_every_public_name_has_its_entry(tmp_path):
    asked = ["make", "--dry-run", "--always-make", "reference"]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout
    command = said.splitlines()[-1].replace("docs/reference", str(tmp_path)).split()
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages = [word for word in command if word.startswith("hydragnn_flow")]
    assert "hydragnn_flow" in packages
    for name in packages:
        page = tmp_path.joinpath(*name.split(".")).with_suffix(".html").read_text(encoding="utf-8")
        public = getattr(importlib.import_module(name), "__all__", [])
        missing = [entry for entry in public if f'id="{entry}"' not in page]
        assert not missing, name
    assert "Warning" not in done.stderr, done.stderr
