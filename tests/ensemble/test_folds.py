"""Structures that weigh and calibrate an ensemble, and their folds."""

from typing import Any

import numpy as np
import pytest

from hydragnn_flow.ensemble.folds import calibration_split, folds


class _Store(dict[str, Any]):
    splits = property(lambda self: tuple(self))


@pytest.mark.parametrize("n", [0, 1, 2, 9, 10, 24, 1001])
def test_folds_are_ten_of_almost_equal_size_and_always_the_same(n):
    found = folds(n)
    assert len(found) == n
    sizes = np.bincount(found, minlength=1)
    assert len(sizes) == max(min(n, 10), 1)
    assert np.ptp(sizes) <= 1
    assert np.array_equal(found, folds(n))


def test_validation_calibrates_where_there_is_no_split_for_it():
    validation, own = [1, 2], [3]
    store = _Store(trainset=[0], valset=validation, testset=[4])
    assert calibration_split(store) is validation  # type: ignore[comparison-overlap, arg-type]
    store["calibrationset"] = []
    assert calibration_split(store) is validation  # type: ignore[comparison-overlap, arg-type]
    store["calibrationset"] = own
    assert calibration_split(store) is own  # type: ignore[comparison-overlap, arg-type]
