"""The page stands by itself, says what is missing, and believes nothing it is told."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import optuna
import pytest
import yaml
from report_cases import CONFIGURATION

from hydragnn_flow.errors import InputError
from hydragnn_flow.report import html
from hydragnn_flow.report.html import read_run, write_report

VOID = {"meta", "img", "link", "br", "wbr"}


class Page(HTMLParser):
    """What the page refers to, and its headings."""

    def __init__(self, text):
        super().__init__()
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.headings: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [v or "" for k, v in attrs if k in {"src", "href", "srcset", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def text(finished):
    path = write_report(finished.directory)
    assert path == finished.directory / "report.html"
    return path.read_text(encoding="utf-8")


def test_every_section_of_a_finished_run_is_there(text, finished):
    page = Page(text)
    assert page.headings == [
        "Accuracy on the test split",
        "How to use the ensemble",
        "Predicted against reference values",
        "Do the error bars know the errors?",
        "Are the error bars honest?",
        "Worst structures",
        "Members of the ensemble",
        "Optimisation history",
        "Learning curves of the trials",
        "Which hyper-parameters mattered",
        "Trials",
        "Failures",
        "What it cost",
        "Where the GCDs' time went",
        "Data",
        "How this run was made",
    ]
    inside = [address[1:] for address in page.addresses if address.startswith("#")]
    assert len(inside) == len(page.headings)
    assert all(text.count(f'<section id="{name}">') == 1 for name in inside)
    for words in (
        "energy per atom",
        "<td>diverged: training loss is nan in epoch 24</td>",
        '<p class="how">Time of the GCDs: ',
        "<dt>target energy</dt><dd>eV, per structure, mean 4.60, standard deviation 4.61",
        "<dt>target forces</dt><dd>eV/Å, per atom, 3 components</dd>",
        "<dt>source</dt><dd>format emt_alloys, elements Cu Ni</dd>",
        "<dt>training split</dt><dd>224 structures, 6,940 atoms, 9 edges</dd>",
        "<dt>elements</dt><dd>Ni Cu</dd>",
        "<dt>cutoff</dt><dd>5 Å</dd>",
        "<dt>duplicates</dt><dd>trainset 2</dd>",
        "<pre>hydragnn-flow run &#39;a b.yaml&#39; --site local</pre>",
        "<dt>torch</dt><dd>2.13.0</dd>",
        f'ensemble = Ensemble.load("{finished.directory}")',
    ):
        assert words in text, words
    assert not {"<dt>left out</dt>", "<dt>division</dt>", "<dt>in place</dt>"} & {*text.split("\n")}
    assert len(text) < 1_000_000


def test_figures_show_sums_alone_per_atom(finished):
    run = read_run(finished.directory)
    assert run.graphs is not None and run.ensemble is not None
    for column in list(run.graphs.filter(regex="^energy")):
        run.graphs[column.replace("energy", "gap")] = run.graphs[column]
    row = run.ensemble["test"]["energy"]
    run.ensemble["test"]["gap"] = {k: v for k, v in row.items() if "per_atom" not in k}
    names = ["energy per atom", "gap", "forces"]
    assert [target.name for target in html.test_targets(run)] == names


def test_nothing_is_loaded_from_anywhere(text):
    page = Page(text)
    assert page.tags.isdisjoint({"link", "iframe", "object"})
    pictures = [address for address in page.addresses if not address.startswith("#")]
    assert len(pictures) == 10
    assert all(address.startswith("data:image/") for address in pictures)
    # The policy allows one script: the page's own.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text or f"'sha256-{digest}'" in text
    style = re.search(r"<style>(.*)</style>", text, re.S)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    for address in pictures:
        kind, _, data = address.partition(";base64,")
        if kind == "data:image/svg+xml":
            svg = base64.b64decode(data).decode()
            assert not re.search(r"(src|href)=\"(?!#|data:)", svg)


def test_a_search_still_going_says_what_is_missing_and_escapes_the_text_of_users(searching):
    evil = "<script>alert('x')</script>"
    study = searching.study
    for value, excess in ((1e-9, 1.0), (1e-7, -1.0)):
        trial = study.ask()
        trial.set_constraint("seconds", excess)
        trial.report(value, 20)
        study.tell(trial, value)
    trial = study.ask()
    trial.suggest_categorical("Training.<b>note", [evil])
    trial.set_user_attr("reason", evil)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    search = {**CONFIGURATION["search"], "objectives": ["val.forces"]}
    values = yaml.safe_dump({**CONFIGURATION, "search": search})
    (searching.directory / "run.yaml").write_text(f"{values}# {evil}\n")
    lines = (searching.directory / "segments.jsonl").read_text().splitlines()
    line = {**json.loads(lines[0]), "node": evil, "reason": evil, "status": "lost"}
    (searching.directory / "segments.jsonl").write_text(json.dumps(line) + "\n")
    page = write_report(searching.directory).read_text(encoding="utf-8")
    assert page.count("<script") == 1 and "<b>note" not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)") == 4
    assert "<li>The search is still going: 10 of 16 trials have ended.</li>" in page
    assert "The ensemble is not finished" in page
    assert "Accuracy on the test split" not in Page(page).headings
    # The best is that of a trial within the limits, and is named by the objective.
    assert "<dt>best val.forces of a complete trial</dt><dd>1.00e-07</dd>" in page
    assert "One mark per trial at\nits val.forces;\nlower is better." in page


def test_a_run_that_has_only_begun_and_one_that_lacks_a_table(tmp_path, finished):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "The search has not begun" in page
    assert Page(page).headings == ["Not there yet", "How this run was made"]
    run = read_run(finished.directory)
    page = html.render(replace(run, graphs=None, nodes=None, segments=[], trials=run.trials[:3]))
    assert "There are no predictions of the test split with reference values yet." in page
    assert "No segment has finished" in page
    page = html.render(replace(run, nodes=None, segments=[], trials=run.trials[:3]))
    assert "The prediction tables hold no target forces, which ensemble.json names." in page


def test_a_directory_that_is_no_run_is_refused_and_left_alone(tmp_path):
    with pytest.raises(InputError, match=r"run\.yaml"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reads_all_of_a_finished_run(finished):
    run = read_run(finished.directory)
    assert run.trials.set_index("trial")["state"].to_dict() == finished.states
    assert [(s.kind, s.number, s.rung) for s in run.segments] == [
        (s["kind"], s["number"], s["rung"]) for s in finished.segments
    ]
    assert run.rungs == (3, 9, 20)
    assert run.ensemble is not None and run.graphs is not None and run.nodes is not None
    assert run.graphs.attrs["units"]["energy_mean"] == "eV"


@pytest.mark.parametrize("name", ["ensemble/ensemble.json", "predictions/test.parquet"])
def test_damaged_results_are_named(searching, name):
    path = searching.directory / name
    path.parent.mkdir()
    path.write_bytes(b"{half")
    with pytest.raises(InputError, match=path.name):
        read_run(searching.directory)
