"""The best evaluations of DeepHyper as configurations that a search begins with."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from console_cases import changed

from hydragnn_flow.config import load_config

SCRIPT = Path(__file__).parents[1] / "examples" / "deephyper_results.py"
SPACE = {
    "Architecture.mpnn_type": {"choices": ["SchNet", "PAINN"]},
    "Architecture.hidden_dim": {"int": [8, 64]},
    "Architecture.num_filters": {"int": [4, 64], "when": {"Architecture.mpnn_type": ["SchNet"]}},
    "Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True},
}
# As DeepHyper 0.13 writes it: a gap where a parameter does not exist, F for a failure.
RESULTS = """\
p:model_type,p:hidden_dim,p:num_filters,p:learning_rate,p:seed,objective,job_id,job_status
SchNet,16,8.0,0.001,1,-0.5,0,DONE
PAINN,32,,0.002,2,-0.25,1,DONE
PAINN,32,,0.002,3,-0.3,2,DONE
PAINN,1000,,0.002,4,-0.1,3,DONE
SchNet,16,8.0,0.003,5,F,4,FAILED
SchNet,16,8.0,0.004,6,-inf,5,DONE
SchNet,24,8.5,0.004,7,-0.2,6,DONE
"""
BEST = [
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


def test_what_is_printed_goes_into_the_configuration_the_best_first(tmp_path):
    values, path = changed("search/space", SPACE), tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    (tmp_path / "results.csv").write_text(RESULTS)
    words = [sys.executable, SCRIPT, path, tmp_path / "results.csv"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values["search"] |= yaml.safe_load(done.stdout)["search"]
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    enqueued = [dict(one) for one in load_config(path).search.enqueue]
    assert enqueued == BEST and isinstance(enqueued[1]["Architecture.num_filters"], int)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + text.replace("PAINN,32,,0.002,2,-0.25", "PAINN,32,,0.002,9,-0.2"), ""),
        (lambda text: text.replace("p:", ""), ""),
        (lambda text: re.sub(r"-\d\S+,(\d,)", r"F,\1", text), "that has worked: all 7 failed"),
        (
            lambda text: text.replace(",", ";"),
            "no table of DeepHyper: its columns are p:model_type;",
        ),
        (lambda text: re.sub("PAINN|SchNet", "GIN", text), "none in search.space: widen the space"),
    ],
)
def test_what_a_table_lacks_is_told(change, says, tmp_path):
    values, path = changed("search/space", SPACE), tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    (tmp_path / "results.csv").write_text(change(RESULTS))
    words = [sys.executable, SCRIPT, path, tmp_path / "results.csv"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == bool(says) and says in done.stderr
    if not says:
        assert yaml.safe_load(done.stdout)["search"]["enqueue"] == BEST
