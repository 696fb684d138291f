"""The page stands by itself, says what is missing, and believes nothing it is told."""

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser

import optuna
import pandas as pd
import pytest
import yaml
from report_cases import CONFIGURATION, Made

from hydragnn_flow.errors import InputError
from hydragnn_flow.report import html
from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.run_files import read_run

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


def test_every_section_of_a_finished_run_is_there(text):
    assert Page(text).headings == [
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
        "What ran where, and when",
        "Data",
        "How this run was made",
    ]
    assert "energy per atom" in text and "meV/atom" in text
    assert "<td>diverged: training loss is nan in epoch 24</td>" in text


def test_figures_show_sums_alone_per_atom(tmp_path):
    made = Made(tmp_path)
    made.add_members()
    table = tmp_path / "predictions" / "test.parquet"
    graphs = pd.read_parquet(table)
    for column in list(graphs.filter(regex="^energy")):
        graphs[column.replace("energy", "gap")] = graphs[column]
    graphs.attrs["units"] = {**graphs.attrs["units"], "gap": "eV"}
    graphs.to_parquet(table)
    file = tmp_path / "ensemble" / "ensemble.json"
    summary = json.loads(file.read_text())
    row = summary["test"]["energy"]
    summary["test"]["gap"] = {k: v for k, v in row.items() if "per_atom" not in k}
    file.write_text(json.dumps(summary))
    assert [t.name for t in html.test_targets(read_run(tmp_path))] == [
        "energy per atom",
        "gap",
        "forces",
    ]


def test_nothing_is_loaded_from_anywhere(text):
    page = Page(text)
    assert page.tags.isdisjoint({"link", "iframe", "object"})
    pictures = [address for address in page.addresses if not address.startswith("#")]
    assert len(pictures) == 12
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


def test_every_heading_is_in_the_contents(text):
    page = Page(text)
    inside = [address[1:] for address in page.addresses if address.startswith("#")]
    assert len(inside) == len(page.headings)
    assert all(text.count(f'<section id="{name}">') == 1 for name in inside)


def test_the_page_says_how_it_was_made_and_how_to_use_it(text, finished):
    assert "<pre>hydragnn-flow run &#39;a b.yaml&#39; --site local</pre>" in text
    assert "<dt>torch</dt><dd>2.13.0</dd>" in text
    assert "<dt>training split</dt><dd>224 structures, 6,940 atoms, 9 edges</dd>" in text
    assert "<dt>elements</dt><dd>Ni Cu</dd>" in text
    lines = text.partition("from hydragnn_flow import Ensemble\n")[2].splitlines()
    assert lines[0] == f'ensemble = Ensemble.load("{finished.directory}")'


def test_pictures_are_worth_their_size(text):
    assert len(text) < 800_000


def test_a_search_still_going_says_what_is_missing(searching):
    page = write_report(searching.directory).read_text(encoding="utf-8")
    assert "7 of 16 trials have ended" in page
    assert "The ensemble is not finished" in page
    assert {"Not there yet", "Optimisation history"} <= set(Page(page).headings)
    assert "Accuracy on the test split" not in Page(page).headings


def test_values_are_named_by_the_objective(tmp_path):
    made = Made(tmp_path / "run")
    search = {**CONFIGURATION["search"], "objectives": ["val.forces"]}
    (made.directory / "run.yaml").write_text(yaml.safe_dump({**CONFIGURATION, "search": search}))
    page = write_report(made.directory).read_text(encoding="utf-8")
    assert "best val.forces of a complete trial" in page
    assert "val.forces</th>" in page
    assert "One mark per trial at\nits val.forces;\nlower is better." in page
    assert "validation error" not in re.sub('alt="[^"]*"', "", page)  # but the curves are of it


def test_the_best_value_is_that_of_a_trial_within_the_limits(tmp_path):
    made = Made(tmp_path / "run")
    for value, excess in ((1e-9, 1.0), (1e-7, -1.0)):
        trial = made._study.ask()
        trial.set_constraint("seconds", excess)
        trial.report(value, 20)
        made._study.tell(trial, value)
    facts = dict(html.facts(read_run(made.directory)))
    assert facts["best validation error of a complete trial"] == "1.00e-07"


def test_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "The search has not begun" in page
    assert Page(page).headings == ["Not there yet", "How this run was made"]


@pytest.mark.parametrize("lost", ["test.parquet", "test_nodes.parquet"])
def test_a_missing_table_is_named(tmp_path, lost):
    made = Made(tmp_path / "run")
    made.add_members()
    (made.directory / "predictions" / lost).unlink()
    run = read_run(made.directory)
    (said,) = html.missing(run, html.test_targets(run))
    assert f"hold no target '{'energy' if lost == 'test.parquet' else 'forces'}'" in said


def test_text_of_users_is_escaped(searching):
    evil = "<script>alert('x')</script>"
    study = searching._study
    trial = study.ask()
    trial.suggest_categorical("Architecture.mpnn_type", ["SchNet", "EGNN", "PNA"])
    trial.suggest_categorical("Training.<b>note", [evil])
    trial.set_user_attr("reason", evil)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    with (searching.directory / "run.yaml").open("a") as file:
        file.write(f"# {evil}\n")
    lines = (searching.directory / "segments.jsonl").read_text().splitlines()
    values = {**json.loads(lines[0]), "node": evil, "reason": evil}
    (searching.directory / "segments.jsonl").write_text(json.dumps(values) + "\n")
    page = write_report(searching.directory).read_text(encoding="utf-8")
    assert page.count("<script") == 1 and "<b>note" not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)") == 3


def test_the_page_is_replaced_whole_or_not_at_all(searching, monkeypatch):
    monkeypatch.setattr(html, "render", lambda run: f"<!DOCTYPE html>{run.config.name}")
    path = searching.directory / "report.html"
    path.write_text("the old page")
    reader = path.open()

    def torn(descriptor):
        os.ftruncate(descriptor, 100)
        raise OSError("disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", torn)
        with pytest.raises(OSError, match="disk is full"):
            write_report(searching.directory)
    assert path.read_text() == "the old page"
    assert not list(searching.directory.glob(".report*"))
    write_report(searching.directory)
    assert path.read_text().startswith("<!DOCTYPE html>")
    # Who has the old page open goes on reading the old page.
    with reader:
        assert reader.read() == "the old page"


def test_a_directory_that_is_no_run_is_refused_and_left_alone(tmp_path):
    with pytest.raises(InputError, match=r"run\.yaml"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
