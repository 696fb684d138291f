"""`resources`: a batch of each GCD, and what it does not go with."""

import pytest

from hydragnn_flow.config import load_config

LOSS = "Training.loss_function_type"
PER_GCD = {"batch_per_gcd": True}


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
