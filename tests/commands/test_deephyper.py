"""The best evaluations of DeepHyper's as configurations that a search begins with."""

import pytest
import yaml
from campaign_cases import CONFIG
from console_cases import Console, changed

from hydragnn_flow import cli
from hydragnn_flow.commands.deephyper import best_evaluations
from hydragnn_flow.config import RunConfig, load_config
from hydragnn_flow.errors import InputError

SPACE = {
    "Architecture.mpnn_type": {"choices": ["SchNet", "PAINN"]},
    "Architecture.hidden_dim": {"int": [8, 64]},
    "Architecture.num_filters": {"int": [4, 64], "when": {"Architecture.mpnn_type": ["SchNet"]}},
    "Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True},
}
# As DeepHyper 0.13 writes it: a gap where a parameter does not exist, F for a failure.
RESULTS = """\
p:mpnn_type,p:hidden_dim,p:num_filters,p:learning_rate,p:seed,objective,job_id,job_status,m:timestamp_submit
SchNet,16,8.0,0.001,1,-0.5,0,DONE,1.5
PAINN,32,,0.002,2,-0.25,1,DONE,2.5
PAINN,32,,0.002,3,-0.3,2,DONE,3.5
PAINN,1000,,0.002,4,-0.1,3,DONE,4.5
SchNet,16,8.0,0.003,5,F,4,FAILED,5.5
SchNet,16,8.0,0.004,6,-inf,5,DONE,6.5
SchNet,24,8.5,0.004,7,-0.2,6,DONE,7.5
"""


@pytest.fixture
def config():
    return RunConfig.model_validate(changed("search/space", SPACE))


@pytest.fixture
def results(tmp_path):
    file = tmp_path / "results.csv"
    file.write_text(RESULTS)
    return file


def test_the_best_come_first_and_each_once(config, results):
    found = best_evaluations([results], config, 5)
    assert found.configurations == [
        {
            "Architecture.mpnn_type": "PAINN",
            "Architecture.hidden_dim": 32,
            "Training.Optimizer.learning_rate": 0.002,
        },
        {
            "Architecture.mpnn_type": "SchNet",
            "Architecture.hidden_dim": 16,
            "Architecture.num_filters": 8,
            "Training.Optimizer.learning_rate": 0.001,
        },
    ]
    assert found.objectives == [-0.25, -0.5]
    assert (found.evaluations, found.failed, found.outside) == (7, 2, 2)
    assert found.unknown == ["seed"]
    assert all(isinstance(c["Architecture.hidden_dim"], int) for c in found.configurations)
    assert len(best_evaluations([results], config, 1).configurations) == 1


def test_several_campaigns_are_one(config, results, tmp_path):
    other = tmp_path / "more.csv"
    other.write_text("p:model_type,p:hidden_dim,objective_1\nPAINN,40,7\nPAINN,48,9\n")
    with pytest.raises(InputError, match=r"more\.csv: has no column 'objective'; .*objective_1"):
        best_evaluations([results, other], config, 5)
    found = best_evaluations([other], config, 5, "objective_1")
    assert [c["Architecture.hidden_dim"] for c in found.configurations] == [48, 40]
    assert all(c["Architecture.mpnn_type"] == "PAINN" for c in found.configurations)
    again = tmp_path / "again.csv"
    again.write_text(RESULTS.replace("-0.5", "-0.01"))
    best = best_evaluations([results, again], config, 5)
    assert best.objectives == [-0.01, -0.25] and best.evaluations == 14


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is no table"),
        ("a,b\n1,2\n", "none of DeepHyper's"),
        ("p:width,objective\n1,2\n", "no path of search.space ends with .* width"),
        ("p:hidden_dim,objective\n1,2\n", "none of its 1 evaluations .* widen the space"),
        ("p:hidden_dim,objective\n16,F\n", "none of its 0 evaluations"),
        ("p:hidden_dim,objective\n16,1\n1,2,3\n", "is no table"),
    ],
)
def test_other_tables_are_refused(config, tmp_path, content, says):
    file = tmp_path / "results.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=f"results.csv: .*{says}") as error:
        best_evaluations([file], config, 5)
    assert "\n" not in str(error.value)


def test_what_is_printed_goes_into_the_configuration(tmp_path, results, monkeypatch, capsys):
    values = changed("search/space", SPACE)
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(values))
    command = ["hydragnn-flow", "import-deephyper", str(results), "-c", str(path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "7 evaluations, 2 failed" in printed and "seed" in printed
    values["search"] |= yaml.safe_load(printed)["search"]
    path.write_text(yaml.safe_dump(values))
    enqueued = load_config(path).search.enqueue
    assert [one["Architecture.mpnn_type"] for one in enqueued] == ["PAINN", "SchNet"]


def test_a_file_that_is_not_there(tmp_path, capsys, monkeypatch):
    console = Console(tmp_path, capsys)
    config = console.write(CONFIG)
    console.refuses(
        monkeypatch,
        "import-deephyper",
        tmp_path / "no.csv",
        "-c",
        config,
        names=["no.csv", "does not exist"],
    )


def test_layers_of_heads_are_found_in_all_branches(tmp_path):
    """As HydraGNN's scripts mean it, whether the space enters branches together or one by one."""
    head = {"num_headlayers": 2, "dim_headlayers": [8, 8]}
    branches = [{"type": f"branch-{n}", "architecture": head} for n in range(2)]
    values = changed("network/Architecture/output_heads", {"node": branches})
    heads = "Architecture.output_heads.node"
    values["search"]["space"] = {
        f"{heads}.num_headlayers": {"int": [1, 2]},
        f"{heads}.0.architecture.dim_headlayers": {"choices": [8, 16]},
        f"{heads}.1.dim_headlayers": {"choices": [16, 32]},
    }
    file = tmp_path / "results.csv"
    file.write_text("p:num_headlayers,p:dim_headlayers,objective\n1,16,-0.5\n2,8,-0.1\n")
    config = RunConfig.model_validate(values)
    (found,) = best_evaluations([file], config, 5).configurations
    assert list(found.values()) == [1, 16, 16]
    # It can be enqueued, and is the network that was meant.
    values["search"]["enqueue"] = [found]
    (enqueued,) = RunConfig.model_validate(values).search.enqueue
    node = config.network_with(enqueued).Architecture.output_heads.node
    assert node is not None
    assert [(one.num_headlayers, one.dim_headlayers) for one in node] == [(1, (16, 16))] * 2
