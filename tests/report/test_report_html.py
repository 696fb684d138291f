"""The page stands by itself, says what is missing, and believes nothing it is told."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import optuna
import pytest
import yaml
from report_cases import CONFIGURATION

from hydragnn_flow.errors import InputError
from hydragnn_flow.report import html
from hydragnn_flow.report.html import read_run, write_report


def headings(page):
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def addresses(page):
    """All that the elements of a page refer to."""
    return re.findall(r'\s(?:src|href|srcset|data)="([^"]*)"', page)


@pytest.fixture
def text(report):
    return report.read_text(encoding="utf-8")


def test_every_section_of_a_finished_run_is_there(text, finished):
    assert len(headings(text)) == 16
    inside = [address[1:] for address in addresses(text) if address.startswith("#")]
    assert len(inside) == len(headings(text))
    assert all(text.count(f'<section id="{name}">') == 1 for name in inside)
    assert "<td>diverged</td>" in text and "<dt>target forces</dt><dd>eV/Å, per atom, 3" in text
    assert "<pre>hydragnn-flow run &#39;a b.yaml&#39; --site local</pre>" in text
    assert f'ensemble = Ensemble.load("{finished.directory}")' in text
    assert "<dt>left out</dt>" not in text and len(text) < 1_000_000
    columns = ", of <code>energy</code>, <code>forces_x</code>, "
    assert columns in text and "ends of the 80 % interval.\n</p>" in text
    assert "; 1 is as bad as predicting the mean</dt>" in text


def test_figures_show_sums_alone_per_atom(finished):
    run = read_run(finished.directory)
    assert run.graphs is not None and run.ensemble is not None
    for column in list(run.graphs.filter(regex="^energy")):
        run.graphs[column.replace("energy", "gap")] = run.graphs[column]
    run.graphs.attrs["components"]["gap"] = ["gap"]
    run.graphs.attrs["units"]["gap_mean"] = "eV"
    run.ensemble["errors"]["gap"] = run.ensemble["errors"]["forces"] | {"target": "gap"}
    names = ["energy per atom", "gap", "forces"]
    assert [target.name for target in html.test_targets(run)] == names


def test_nothing_is_loaded_from_anywhere(text):
    assert not re.search("<(link|iframe|object)", text)
    pictures = [address for address in addresses(text) if not address.startswith("#")]
    assert len(pictures) == 10
    assert all(address.startswith("data:image/") for address in pictures)
    # The policy allows one script: the page's own.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'; img-src data:;" in text
    assert f"script-src 'sha256-{digest}'" in text
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
    assert "search is stopped: 10 of 16 trials" in page and "ensemble is not finished" in page
    assert "Accuracy on the test split" not in headings(page)
    # The best is that of a trial within the limits, and is named by the objective.
    assert "<dt>best val.forces of a complete trial</dt><dd>1.00e-07</dd>" in page


def test_a_run_that_has_only_begun_and_one_that_lacks_a_table(tmp_path, finished):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "The search has not begun" in page
    assert headings(page) == ["Not there yet", "How this run was made"]
    run = read_run(finished.directory)
    stage = replace(run.stage, results=[])
    run = replace(run, nodes=None, stage=stage, trials=run.trials[:3])
    page = html.render(run)
    assert "hold no target forces" in page and "No segment has finished" in page
    assert "There are no predictions of the test split" in html.render(replace(run, graphs=None))


def test_a_directory_that_is_no_run_is_refused_and_left_alone(tmp_path):
    with pytest.raises(InputError, match=r"run\.yaml"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ensemble/ensemble.json", "predictions/test.parquet"])
def test_damaged_results_are_named(searching, name):
    path = searching.directory / name
    path.parent.mkdir()
    path.write_bytes(b"{half")
    with pytest.raises(InputError, match=path.name):
        read_run(searching.directory)
