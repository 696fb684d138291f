"""Domains of the hyper-parameters of a search, and the conditions they exist under."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isclose

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section

Scalar = bool | int | float | str
Needed = dict[str, tuple[Scalar, ...]]
# Named here because Parameter's own fields `int` and `float` hide the types inside its body.
_IntRange = tuple[int, int]
_FloatRange = tuple[float, float]
_Number = float


class Parameter(Section):
    """Hyper-parameter of a search: exactly one of ``choices``, ``int`` and ``float``."""

    choices: tuple[Scalar, ...] | None = None
    """Values to choose from."""
    int: _IntRange | None = None
    """Smallest and largest value of an integer."""
    float: _FloatRange | None = None
    """Smallest and largest value of a real number."""
    log: bool = False
    """Search the range on a logarithmic scale."""
    step: _Number | None = Field(default=None, gt=0)
    """Grid spacing, counted from the smallest value. The largest value is rounded down to the
    grid."""
    when: dict[str, tuple[Scalar, ...]] = Field(default={})
    """Condition: the parameter exists only while each parameter named here, and listed before it,
    has one of these values: ``{Architecture.mpnn_type: [SchNet]}``."""

    @model_validator(mode="after")
    def _one_domain(self) -> Parameter:
        if sum(domain is not None for domain in (self.choices, self.int, self.float)) != 1:
            raise ValueError("give exactly one of choices, int and float")
        if self.choices is not None:
            self._check_choices(self.choices)
        bounds = self.int or self.float
        if bounds is not None:
            self._check_range(*bounds)
        return self

    def _check_choices(self, choices: tuple[Scalar, ...]) -> None:
        if not choices:
            raise ValueError("choices is empty; give at least one value")
        for option in ("log", "step"):
            if getattr(self, option):
                raise ValueError(f"{option} belongs to int and float ranges; remove it")
        for i, value in enumerate(choices):
            if value in choices[:i]:  # Optuna cannot tell 1 from true either
                raise ValueError(f"choices lists {value!r} twice; remove one")

    def _check_range(self, low: _Number, high: _Number) -> None:
        if low > high:
            raise ValueError(f"the range {[low, high]} is empty; give [smallest, largest]")
        if self.log and low <= 0:
            raise ValueError(f"the range {[low, high]} must be above zero for log: true")
        if self.step is None:
            return
        if self.log:
            raise ValueError("step and log exclude each other; remove one")
        if self.int is not None and self.step % 1:
            raise ValueError(f"step {self.step:g} is not a whole number, but the range is of int")
        if self._steps_to(high) < 1:
            raise ValueError(
                f"step {self.step:g} leaves only {low:g} of the range {[low, high]}; lower it"
            )
        # Optuna lowers the end of a range that is not a whole number of steps in decimals, and
        # would do so again whenever it reads the study.
        if self.bounds is not None and self._steps_to(self.bounds[1]) % 1:
            raise ValueError(
                f"step {self.step:g} cannot be counted from {low!r}; give both fewer digits"
            )

    def _steps_to(self, value: _Number) -> Decimal:
        """Return the number of steps from the smallest value to ``value``.

        It is computed in decimal arithmetic, in which 0.3 is exactly 3 times 0.1.
        """
        bounds = self.int or self.float or (0, 0)
        low, number, step = (Decimal(str(n)) for n in (bounds[0], value, self.step))
        return (number - low) / step

    @property
    def bounds(self) -> tuple[_Number, _Number] | None:
        """Smallest and largest value of a range, the latter rounded down to the grid of ``step``.

        They are integers for an `int` range. None for choices.
        """
        bounds = self.int or self.float
        if bounds is None or self.step is None:
            return bounds
        steps = int(self._steps_to(bounds[1]))
        reached = Decimal(str(bounds[0])) + steps * Decimal(str(self.step))
        return (bounds[0], type(bounds[1])(reached))

    def contains(self, value: object) -> bool:
        """Return True if a value is in the domain."""
        if self.choices is not None:
            return any(_same(value, choice) for choice in self.choices)
        kinds = int if self.int is not None else (int, float)
        if self.bounds is None or isinstance(value, bool) or not isinstance(value, kinds):
            return False
        low, high = self.bounds
        if not low <= value <= high:
            return False
        steps = 0.0 if self.step is None else (value - low) / self.step
        return isclose(steps, round(steps), abs_tol=1e-8)

    def examples(self) -> tuple[Scalar, ...]:
        """Return values that together test the domain: every choice, or both ends of the range.

        For integers, the neighbours of both ends are included, since some keys accept only
        multiples of another key.
        """
        if self.int is None:
            return self.choices or self.bounds or ()
        assert self.bounds is not None
        low, high = self.bounds
        step = self.step or 1
        ends = {low, min(low + step, high), max(high - step, low), high}
        return tuple(sorted(int(value) for value in ends))


def check_conditions(space: Mapping[str, Parameter]) -> None:
    """Check the conditions of all parameters of a search space.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path.

    Raises
    ------
    ValueError
        If a condition names a parameter that is not listed before its own, lists no value or one
        that the named parameter never has, or contradicts the conditions of the named parameter.
    """
    seen: list[str] = []
    for name, parameter in space.items():
        for other, values in parameter.when.items():
            if other not in seen:
                raise ValueError(
                    f"space.{name}.when names {other!r}, which is not a parameter listed before "
                    f"it{did_you_mean(other, seen)}"
                )
            if not values:
                raise ValueError(f"space.{name}.when lists no value of {other!r}")
            domain = space[other]
            if domain.float is not None and domain.step is None:
                raise ValueError(
                    f"space.{name}.when names {other!r}, a range of numbers without step, which "
                    f"hardly ever has just these values; give it choices or a step"
                )
            strange = [value for value in values if not domain.contains(value)]
            if strange:
                raise ValueError(
                    f"space.{name}.when lists {strange[0]!r}, which is not in the domain of "
                    f"{other!r}; correct the one or the other"
                )
        for other, allowed in needed(space, name).items():
            if not allowed:
                raise ValueError(
                    f"space.{name}.when can never hold: no value of {other!r} meets it and the "
                    f"conditions of the parameters it names; correct one of them"
                )
        seen.append(name)


def needed(space: Mapping[str, Parameter], name: str) -> Needed:
    """Return the values that other parameters must have for the parameter ``name`` to exist.

    The values are by parameter. Conditions of these other parameters are included.
    """
    result: Needed = {}
    for other, values in space[name].when.items():
        result = both(both(result, needed(space, other)), {other: values})
    return result


def both(one: Needed, other: Needed) -> Needed:
    """Return the values, by parameter, that both of two conditions allow.

    The values of a parameter are empty where the conditions contradict each other.
    """
    shared = {
        name: tuple(value for value in one[name] if value in other[name])
        for name in one
        if name in other
    }
    return {**one, **other, **shared}


def _same(one: object, other: object) -> bool:
    """Compare two values; True is not 1, unlike in Python."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return the end of a sentence on an unknown word: a similar known word, or an empty string."""
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
