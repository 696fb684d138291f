"""SchNet where its layers move the atoms."""

from __future__ import annotations

from displacement_checks import (
    Make,
    check_every_parameter_learns,
    check_it_is_continuous_at_the_cutoff,
    check_it_matters_and_is_invariant,
)


def test_moving_atoms_matters_and_is_invariant(make: Make) -> None:
    check_it_matters_and_is_invariant(make, "SchNet")


def test_moving_atoms_is_continuous_at_the_cutoff(make: Make) -> None:
    check_it_is_continuous_at_the_cutoff(make, "SchNet")


def test_moving_atoms_trains_every_parameter(make: Make) -> None:
    check_every_parameter_learns(make, "SchNet")
