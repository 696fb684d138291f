"""`make site` builds the pages without a warning, and the API reference with all public names."""

import importlib
import re
import subprocess
import sys

import pytest
from page_cases import PAGES, REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    asked = ["make", "--dry-run", "--always-make", "site"]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout
    words = said.splitlines()[-1].split()
    words[1] = sys.executable
    done = subprocess.run(
        ["env", *words, "--site-dir", folder], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_navigation(site):
    """The strict build fails on pages that are not, and on links that lead nowhere."""
    found = {page.name for page in site.rglob("*.html")}
    assert {page.with_suffix(".html").name for page in PAGES if page.name != "README.md"} <= found
    for page in site.rglob("*.html"):
        for source in re.findall(r'<img[^>]* src="([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / source).is_file(), page


@pytest.mark.slow
def test_files_of_the_repository_are_listed(site):
    page = site / "repository" / "configs" / "strategy.yaml.html"
    assert "Training.sharding.strategy" in page.read_text(encoding="utf-8")
    assert "configs/strategy.yaml.html" in (site / "how-to" / "strategy.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_every_public_name_has_its_entry(site):
    packages = {page.stem: page for page in (site / "api").glob("*.html")}
    assert "hydragnn_flow" in packages
    for name, page in packages.items():
        text = page.read_text(encoding="utf-8")
        public = getattr(importlib.import_module(name), "__all__", [])
        assert not [entry for entry in public if f'id="{name}.{entry}"' not in text], name
