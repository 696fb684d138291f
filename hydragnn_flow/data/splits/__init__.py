"""Which structures train, validate and test."""

from __future__ import annotations

import numpy as np

from hydragnn_flow.errors import InputError

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""The names HydraGNN gives its splits."""


def split_indices(n: int, val: float, test: float | None, seed: int) -> dict[str, list[int]]:
    """Divide ``n`` structures at random.

    Parameters
    ----------
    n
        Number of structures.
    val, test
        Shares set aside; at least one structure each. ``test=None`` leaves the test split empty.
    seed
        Determines the draw.

    Returns
    -------
    dict
        Indices of each split, ascending.

    Raises
    ------
    InputError
        Where nothing would be left to train on.
    """
    n_val = max(1, round(val * n))
    n_test = 0 if test is None else max(1, round(test * n))
    if n - n_val - n_test < 1:
        raise InputError(
            f"data.split leaves nothing to train on: {n} structures, {n_val} for validation, "
            f"{n_test} for the test; give more structures or smaller shares"
        )
    # A stream of its own: generated structures draw from other children of the same seed.
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(n)
    parts = np.split(order, [n_val, n_val + n_test])
    return {
        TRAIN: sorted(parts[2].tolist()),
        VALIDATION: sorted(parts[0].tolist()),
        TEST: sorted(parts[1].tolist()),
    }
