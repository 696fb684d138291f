"""README and docs: configurations are valid, commands and files exist, links lead somewhere."""

import ast
import json
import pkgutil
import re
import subprocess
from itertools import chain
from typing import Any

import pytest
import typer
import yaml
from page_cases import PACKAGE, PAGES, REPOSITORY, Line, blocks, is_named, lines

from hydragnn_flow import cli, load_site
from hydragnn_flow.config import DataConfig, NetworkConfig, RunConfig, load_config, resolve_config
from hydragnn_flow.config.network import load_network, read_json

_QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"
# In backticks: a path below a folder of the repository or a room of the package, or any module.
_FOLDERS = "benchmarks|configs|docs|hydragnn_flow|sites|tests|workflows"
_FILE = rf"`((?:{_FOLDERS})/[\w./-]+|\w+/[\w/]*\w\.py)`"
# A class, a method or attribute of one, or a function: `Geometry`, `Search.ask`, `run_segment()`.
_NAME = r"`([A-Z][a-z]\w*(?:\.\w+)?|[a-z]\w*(?=\(\)))(?:\(\))?`"
_ABOUT_THE_CODE = ("architecture.md", "CONTRIBUTING.md")
# What the site `allocation` asks its job for.
_JOB = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NUM_NODES": "16",
    "SLURM_JOB_CPUS_PER_NODE": "64(x16)",
    "SLURM_JOB_END_TIME": "99999999999",
}


def place(case):
    return case.place


@pytest.mark.parametrize("block", blocks("yaml"), ids=place)
def test_yaml(block, tmp_path, monkeypatch):
    values = yaml.safe_load(block.text)
    if "how-to" in block.place and block.text.startswith("# ") and "site" not in values:
        return  # saved and run by test_campaign
    if "site" in values:
        for name, value in _JOB.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("SLURM_STEP_ID", raising=False)
        (tmp_path / "site.yaml").write_text(block.text, encoding="utf-8")
        assert load_site(tmp_path / "site.yaml").name == values["site"]
    elif values.get("kind") == "Job":
        [container] = values["spec"]["template"]["spec"]["containers"]
        test_commands_exist_with_their_options(Line(block.place, (*container["command"],), True))
    elif "…" in values.values():
        assert set(values) == set(RunConfig.model_fields)
    elif set(values) == {"targets"}:
        source = {"format": "ase", "train": "train.xyz", **values}
        DataConfig.model_validate({"source": source, "split": {"test": 0.1}})
    elif set(values) == {"data"}:
        DataConfig.model_validate(values["data"])
    else:
        whole = yaml.safe_load(_QUICKSTART.read_text(encoding="utf-8"))
        assert set(values) <= set(whole)
        resolve_config({**whole, **values}, _QUICKSTART)


@pytest.mark.parametrize("block", blocks("json"), ids=place)
def test_json(block):
    values = json.loads(f"{{{block.text}}}")
    network = read_json(_QUICKSTART.with_name("potential.json"))["NeuralNetwork"]
    for section, keys in values.items():
        assert section in NetworkConfig.model_fields
        network[section] |= keys
    load_network(network)


@pytest.mark.parametrize("file", sorted(REPOSITORY.glob("configs/*.yaml")), ids=lambda f: f.name)
def test_every_configuration_that_comes_with_the_package_is_valid(file):
    assert load_config(file).search.trials > 0


@pytest.mark.parametrize("line", lines("hydragnn-flow"), ids=place)
def test_commands_exist_with_their_options(line):
    command: Any = typer.main.get_command(cli.app)
    words = list(line.words[1:])
    while hasattr(command, "commands") and words != ["--version"]:
        assert words[:1] and words[0] in command.commands, words
        command = command.commands[words.pop(0)]
    context = command.context_class(command)
    given, left, _ = command.make_parser(context).parse_args(words)
    assert left == []
    if line.whole:
        needed = {parameter.name for parameter in command.params if parameter.required}
        assert needed == {name for name in needed if isinstance(given.get(name), str)}


@pytest.mark.parametrize(
    "line", [line for line in lines("python") if "-m" not in line.words], ids=place
)
def test_programs_exist_with_their_options(line):
    page = line.place.partition(":")[0]
    own = (block for block in blocks("python") if block.place.partition(":")[0] == page)
    if any(block.text.startswith(f"# {line.words[1]}\n") for block in own):
        return  # the page has its reader save it
    program = REPOSITORY / line.words[1]
    assert program.is_file()
    source = program.read_text(encoding="utf-8")
    for word in line.words[2:]:
        if word.startswith("-"):
            parameter = word.strip("-").replace("-", "_")  # of typer.run
            assert re.search(rf'"{word}"|\b{parameter}: ', source)


@pytest.mark.parametrize("line", lines("make"), ids=place)
def test_make_has_its_targets(line):
    if "benchmark-NAME" in line.words:
        return  # stands for any
    command = ["make", "--dry-run", *line.words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for name in (word.partition("=")[0] for word in line.words[1:] if "=" in word):
        assert re.search(rf"\b{name}\b", makefile)


@pytest.mark.parametrize(
    "file", sorted(REPOSITORY.glob(".github/workflows/*.yml")), ids=lambda f: f.name
)
def test_workflows_give_commands_that_are_there(file):
    text = file.read_text(encoding="utf-8")
    assert all(
        ("run" in step) != ("uses" in step)
        for job in yaml.safe_load(text)["jobs"].values()
        for step in job["steps"]
    )
    for target in re.findall(r"run: make (\w+)", text):
        command = ["make", "--dry-run", target]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_repository_that_a_page_names_exist(page):
    """Modules may be named by the end of their path, as `campaign/driver.py`."""
    for name in re.findall(_FILE, page.read_text(encoding="utf-8")):
        assert (REPOSITORY / name).exists() or any(PACKAGE.rglob(name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_the_code_on_a_page_are_defined(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![/\w])hydragnn_flow(?:\.\w+)+", text):
        pkgutil.resolve_name(name)
    if page.name in _ABOUT_THE_CODE:
        for name in re.findall(_NAME, text):
            assert is_named(name), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r'<img src="([^"]+)"', text)
    for target in [*re.findall(r"\]\((?!https?://)([^)\s]+)\)", text), *pictures]:
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_messages_of_the_troubleshooting_page_are_those_of_the_code():
    parts = [ast.walk(ast.parse(file.read_text("utf-8"))) for file in PACKAGE.rglob("*.py")]
    said = "\n".join(str(p.value) for p in chain(*parts) if isinstance(p, ast.Constant))
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ", page, flags=re.MULTILINE)
    assert len(rows) > 15
    for message in re.findall("`([^`]+)`", " ".join(rows)):
        assert message in said, message


def anchors(page):
    """Names GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
