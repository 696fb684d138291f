"""`resources`: a batch of each GCD, and what it does not go with."""

import pytest

from hydragnn_flow.config import load_config
from hydragnn_flow.errors import InputError

LOSS = "Training.loss_function_type"
PER_GCD = {"batch_per_gcd": True}


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("data", "mode"), "stream", ("data.mode = stream", "write data.mode: random")),
        (
            ("network", "NeuralNetwork", "Training", "loss_function_type"),
            "rmse",
            (f"{LOSS} = 'rmse'", "write 'mse' or remove batch_per_gcd"),
        ),
        (
            ("search", "space", LOSS),
            {"choices": ["mse", "rmse"]},
            (f"{LOSS} = 'rmse'", "write 'mse' or remove batch_per_gcd"),
        ),
        (
            ("search", "failures"),
            {"out_of_memory": "record"},
            ("search.failures.out_of_memory = record", "write resize or remove"),
        ),
        (("resources", "batch_per_gcd"), 4, ("resources.batch_per_gcd: must be a valid boolean",)),
        (("resources", "batch_per_gpu"), True, ("resources", "did you mean 'batch_per_gcd'")),
    ],
)
def test_what_a_batch_of_each_gcd_does_not_go_with_is_named(
    place, value, said, quickstart, change, write
):
    path = write(change({**quickstart, "resources": PER_GCD}, place, value))
    with pytest.raises(InputError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    ("resources", "asked", "expected"),
    [
        ({}, {}, 1),
        ({"gcds": 4}, {}, 1),
        (PER_GCD, {}, 1),
        (PER_GCD | {"gcds": 4}, {}, 4),
        (PER_GCD, {"Resources.gcds": 2}, 2),
    ],
)
def test_a_trial_has_a_batch_of_each_gcd_that_it_asks_for(
    resources, asked, expected, quickstart, write
):
    """How many were free decides nothing of a trial."""
    config = load_config(write({**quickstart, "resources": resources}))
    assert config.batches(asked) == expected
