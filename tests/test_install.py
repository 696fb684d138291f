"""The package as it is installed: what it needs is declared, and it works away from its sources."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml

from hydragnn_flow.execution.binding import bound_to

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with mypy

REPOSITORY = Path(__file__).parents[1]
EXTRAS = ("dashboard", "e3nn", "hdf5", "hub", "mesh", "trackers")
SUITES = REPOSITORY / "hydragnn_flow" / "testing"


def imported(folder):
    """Each file of a folder of sources, with the modules that it imports anywhere in it."""
    for file in (REPOSITORY / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            yield from ((file, name) for name in names)


def test_every_package_that_is_imported_is_declared():
    """What the tests need must not hide what the package itself needs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"]]
    needed += [line for name in EXTRAS for line in extras[name]]
    always, of_suites = (
        {re.split(r"[^\w.-]", line)[0].lower() for line in lines}
        for lines in (needed, extras["testing"])
    )
    known = packages_distributions()
    wrong = set()
    for folder in ("hydragnn_flow", "sites"):
        for file, module in imported(folder):
            name = module.partition(".")[0]
            if name in sys.stdlib_module_names or name in ("hydragnn_flow", "_typeshed"):
                continue
            declared = always | of_suites if SUITES in file.parents else always
            if not declared & {distribution.lower() for distribution in known.get(name, ())}:
                wrong.add(f"{file.relative_to(REPOSITORY)} imports {name}")
    assert not wrong


def test_the_citation_is_of_this_version_and_licence():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["title"] == project["name"]
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"] == "BSD-3-Clause"


def test_nothing_but_tests_imports_the_conformance_suites():
    """They need pytest, which the package does not."""
    assert list(SUITES.glob("*.py"))
    importers = {
        str(file.relative_to(REPOSITORY))
        for folder in ("hydragnn_flow", "sites", "workflows")
        for file, module in imported(folder)
        if module.startswith("hydragnn_flow.testing") and SUITES not in file.parents
    }
    assert not importers


def run(programs, folder, *words):
    """Start a command of the fresh environment in a folder that is not the repository."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [programs / words[0], *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=alone)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_package_is_whole_and_works(tmp_path):
    """In a fresh environment, with what the package depends on from the environment of the tests.

    Parsl starts workers with the Python of the environment; trainers import the package there.
    """
    fresh = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(REPOSITORY)], check=True)
    [packages] = fresh.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    installed = partial(run, fresh / "bin", tmp_path)

    where = "import hydragnn_flow; print(hydragnn_flow.__file__)"
    package = Path(installed("python", "-c", where).strip()).parent
    assert package.is_relative_to(fresh)
    built = {file.relative_to(package) for file in package.rglob("*") if file.suffix != ".pyc"}
    sources = REPOSITORY / "hydragnn_flow"
    for file in sources.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert file.relative_to(sources) in built
    told = dict(line.split() for line in installed("hydragnn-flow", "--version").splitlines())
    assert told["hydragnn_flow"] == version("hydragnn_flow")
    assert told["torch"] == version("torch")

    (tmp_path / "site.yaml").write_text("site: frontier\naccount: ABC123\nnodes: 16\nblocks: 4\n")
    for site in ("frontier", "site.yaml"):
        said = installed("hydragnn-flow", "site", "show", site, "-A", "ABC123")
        assert "#SBATCH --account=ABC123" in said
    where = "from hydragnn_flow.execution import shipped_sites; print(*shipped_sites().values())"
    for file in map(Path, installed("python", "-c", where).split()):
        assert file.parent.name == "_sites"
        assert file.read_bytes() == (REPOSITORY / "sites" / file.name).read_bytes()

    configs = "from hydragnn_flow.config.run import shipped_configs; print(*shipped_configs())"
    assert "quickstart" in installed("python", "-c", configs).split()
    assert "--run-dir" in installed("hydragnn-flow", "quickstart", "--help")

    with bound_to({min(os.sched_getaffinity(0))}):  # of one core it makes one GCD
        assert "local is as it should be" in installed("hydragnn-flow", "site", "check", "local")


FIT = """
from ase.build import bulk

from hydragnn_flow import fit

structures = [bulk("Cu", cubic=True) for _ in range(44)]
for number, atoms in enumerate(structures):
    atoms.rattle(0.05, seed=number)
gaps = [number % 7 + 0.5 for number in range(44)]
if __name__ == "__main__":
    ensemble = fit(structures, {"gap": gaps}, "fitted", trials=2, members=2, epochs=2)
    print(len(ensemble.predict(structures).graphs))
"""


@pytest.mark.slow
def test_the_lowest_versions_of_dependencies_fit_an_ensemble(tmp_path):
    """Without extras; torch alone, hundreds of megabytes, is that of the tests."""
    fresh = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    (tmp_path / "excluded").write_text("torch\n")
    lowest = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-config"]
    lowest += ["--python", fresh / "bin" / "python", "--resolution", "lowest-direct"]
    lowest += ["--excludes", tmp_path / "excluded", REPOSITORY]
    subprocess.run(lowest, check=True)
    [packages] = fresh.glob("lib/python*/site-packages")
    hidden = "import sys; sys.modules.update(e3nn=None, optuna_dashboard=None)"
    (packages / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n{hidden}\n")
    (tmp_path / "some.py").write_text(FIT)
    told = run(fresh / "bin", tmp_path, "hydragnn-flow", "--version")
    versions = dict(line.split() for line in told.splitlines())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        name, _, bound = re.split(r"[<,]", line)[0].partition(">=")
        if name in versions and name != "torch":
            assert f"{versions[name]}.0.0".startswith(f"{bound}."), name
    assert run(fresh / "bin", tmp_path, "python", "some.py").split()[-1] == "44"
    assert (tmp_path / "fitted" / "report.html").exists()
