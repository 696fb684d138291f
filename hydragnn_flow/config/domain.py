"""Domains of the hyper-parameters of a search, conditions for them to exist, and rules."""

from __future__ import annotations

import ast
import difflib
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from math import isclose
from typing import Any

from pydantic import Field

from hydragnn_flow.config.base import Section

Scalar = bool | int | float | str
Needed = dict[str, tuple[Scalar, ...]]
# Named here because Parameter's own fields `int` and `float` hide the types inside its body.
_IntRange = tuple[int, int]
_FloatRange = tuple[float, float]
_Number = float


class Parameter(Section):
    """Domain of a hyper-parameter in `search.space`: one of ``choices``, ``int`` and ``float``."""

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

    def _conflicts(self) -> Iterator[str]:
        if sum(domain is not None for domain in (self.choices, self.int, self.float)) != 1:
            yield "give exactly one of choices, int and float"
        if self.choices is not None:
            yield from self._wrong_choices(self.choices)
        elif bounds := self.int or self.float:
            yield from self._wrong_range(*bounds)

    def _wrong_choices(self, choices: tuple[Scalar, ...]) -> Iterator[str]:
        if not choices:
            yield "choices is empty; give at least one value"
        for option in ("log", "step"):
            if getattr(self, option):
                yield f"{option} belongs to int and float ranges; remove it"
        for i, value in enumerate(choices):
            if value in choices[:i]:  # Optuna cannot tell 1 from true either
                yield f"choices lists {value!r} twice; remove one"

    def _wrong_range(self, low: _Number, high: _Number) -> Iterator[str]:
        if low > high:
            yield f"the range {[low, high]} is empty; give [smallest, largest]"
        if self.log and low <= 0:
            yield f"the range {[low, high]} must be above zero for log: true"
        if self.step is None:
            return
        if self.log:
            yield "step and log exclude each other; remove one"
        if self.int is not None and self.step % 1:
            yield f"step {self.step:g} is not a whole number, but the range is of int"
        if self._steps_to(high) < 1:
            yield f"step {self.step:g} leaves only {low:g} of the range {[low, high]}; lower it"
        # Optuna lowers the end of a range that is not a whole number of steps in decimals, and
        # would do so again whenever it reads the study.
        if self.bounds is not None and self._steps_to(self.bounds[1]) % 1:
            yield f"step {self.step:g} cannot be counted from {low!r}; give both fewer digits"

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

        Both are integers for an `int` range. The result is None for choices.
        """
        bounds = self.int or self.float
        if bounds is None or self.step is None:
            return bounds
        steps = int(self._steps_to(bounds[1]))
        reached = Decimal(str(bounds[0])) + steps * Decimal(str(self.step))
        return (bounds[0], type(bounds[1])(reached))

    def contains(self, value: object) -> bool:
        """Return True if a value is in the domain of the parameter."""
        if self.choices is not None:
            return any(_same(value, choice) for choice in self.choices)
        if self.bounds is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        low, high = self.bounds
        if not low <= value <= high or (self.int is not None and value % 1):
            return False
        steps = 0.0 if self.step is None else (value - low) / self.step
        return isclose(steps, round(steps), abs_tol=1e-8)

    def exists(self, values: Mapping[str, object]) -> bool:
        """Return True if the parameter exists in a trial with these values, by its `when`."""
        return all(
            other in values and any(alike(values[other], one) for one in allowed)
            for other, allowed in self.when.items()
        )

    def at(self, unit: _Number) -> Scalar:
        """Return the parameter's value at a relative position in its domain, 0 to less than 1."""
        if self.choices is not None:
            return self.choices[int(unit * len(self.choices))]
        assert self.bounds is not None
        low, high = self.bounds
        step = self.step or (1 if self.int is not None else 0)
        if self.log:
            value = low * ((high + step) / low) ** unit
        else:
            value = low + unit * (high + step - low)
        if step:
            value = low + step * ((value - low) // step)
        return min(int(value) if self.int is not None else value, high)

    def examples(self) -> tuple[Scalar, ...]:
        """Return example values that test the domain: every choice, or both ends of the range.

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
    """Check the conditions (key ``when``) of all parameters of a search space.

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

    The result has the values by parameter. Conditions of these other parameters are included.
    """
    result: Needed = {}
    for other, values in space[name].when.items():
        result = both(both(result, needed(space, other)), {other: values})
    return result


def both(one: Needed, other: Needed) -> Needed:
    """Combine two conditions on parameters: return the values, by parameter, that both allow.

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


def alike(one: object, other: object) -> bool:
    """Compare two values, floats to nine digits: the third step of 0.1 is 0.30000000000000004."""
    close = isinstance(one, float) and isinstance(other, float) and isclose(one, other)
    return close or _same(one, other)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return the end of an error message that suggests the known word most like ``given``.

    It is empty if no known word is similar.
    """
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_EXAMPLE = "write comparisons, as in hidden_dim % global_attn_heads == 0"
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_close = partial(isclose, abs_tol=1e-12)  # 0.3 - 3 * 0.1 is zero
_ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: lambda one, other: _close(one, other),
    ast.NotEq: lambda one, other: not _close(one, other),
    ast.Lt: lambda one, other: one < other and not _close(one, other),
    ast.LtE: lambda one, other: one <= other or _close(one, other),
    ast.Gt: lambda one, other: one > other and not _close(one, other),
    ast.GtE: lambda one, other: one >= other or _close(one, other),
}
_Values = Mapping[str, Any]
_PLACE = "place_of_parameter_"


class Rule:
    """Condition in `search.where` that the parameters of every trial meet.

    Numbers are compared to nine digits, or to 1e-12, so that 0.1 + 0.2 is 0.3. An example of a rule
    is ``hidden_dim <= 4 * num_radial``.

    Parameters
    ----------
    text
        Comparisons of arithmetic expressions, joined by ``and``, ``or`` and ``not``. A name is a
        path of the space, or its end if no other path ends alike.
    space
        Domain of each parameter by dotted path.

    Raises
    ------
    ValueError
        If the text is no such expression, names an unknown parameter or none, calculates with
        words, or compares a parameter with a word that is not in its domain.
    """

    def __init__(self, text: str, space: Mapping[str, Parameter]) -> None:
        self.text, self._space = text, space
        self._places = [*space]
        try:
            tree = ast.parse(self._with_places(text.strip()), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
            raise ValueError(f"{text!r} is no expression: {reason}; {_EXAMPLE}") from error
        named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        for node in named:
            node.id = self._path(node.id)
        self.paths = tuple(dict.fromkeys(node.id for node in named))
        """Paths of the parameters that the rule names."""
        if not self.paths:
            raise ValueError(f"{text!r} names no parameter of space; {_EXAMPLE}")
        self._truth = self._condition(tree.body)

    def holds(self, values: _Values) -> bool:
        """Return True if a trial's parameter values, by dotted path, meet the rule.

        The rule holds, too, if a parameter that it names has no value. It does not hold if it
        divides by zero.
        """
        if any(path not in values for path in self.paths):
            return True
        try:
            return self._truth(values)
        except ArithmeticError:
            return False

    def _with_places(self, text: str) -> str:
        """Replace paths, and ends that only one path has, by names that Python takes."""
        places: dict[str, int] = {}
        for place, path in enumerate(self._places):
            keys = path.split(".")
            for end in (".".join(keys[first:]) for first in range(len(keys))):
                if end and not end[0].isdigit():  # a position, which would take numbers of the rule
                    places[end] = -1 if end in places and end not in self._places else place
        for place, path in enumerate(self._places):
            places[path] = place
        unique = sorted((re.escape(end) for end in places if places[end] >= 0), key=len)[::-1]
        name = re.compile(rf"""('[^']*'|"[^"]*")|(?<![\w.])({"|".join(unique)})(?![\w.])""")
        return name.sub(lambda found: found[1] or f"{_PLACE}{places[found[2]]}", text)

    def _path(self, name: str) -> str:
        """Return the path of a name that `_with_places` has set."""
        if re.fullmatch(rf"{_PLACE}\d+", name) and int(name[len(_PLACE) :]) < len(self._places):
            return self._places[int(name[len(_PLACE) :])]
        alike = [path for path in self._places if path.endswith(f".{name}")]
        if len(alike) > 1:
            raise ValueError(f"{name!r} may be {' or '.join(alike)}; write the whole path")
        # With what follows a dot, which Python takes for a part of what the name has.
        found = re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)[\w.]*", self.text)
        name = found[0] if found else name
        ends = (path.rpartition(".")[2] for path in self._places)
        hint = (
            did_you_mean(name, [*self._places, *ends, "True", "False"]) or "; put a word in quotes"
        )
        raise ValueError(f"{name!r} is not a parameter of space{hint}")

    def _condition(self, node: ast.expr) -> Callable[[_Values], bool]:
        match node:
            case ast.BoolOp(op, parts):
                fold = all if isinstance(op, ast.And) else any
                truths = [*map(self._condition, parts)]
                return lambda values: fold(truth(values) for truth in truths)
            case ast.UnaryOp(ast.Not(), part):
                truth = self._condition(part)
                return lambda values: not truth(values)
            case ast.Compare(left, operators, others):
                pairs = zip((left, *others), operators, others, strict=False)
                links = [self._comparison(*pair) for pair in pairs]
                return lambda values: all(link(values) for link in links)
            case ast.Name() if self._space[node.id].choices in ((True, False), (False, True)):
                path = node.id
                return lambda values: bool(values[path])
        raise ValueError(f"{self.text!r} has a part that is neither true nor false; {_EXAMPLE}")

    def _comparison(
        self, left: ast.expr, comparison: ast.cmpop, right: ast.expr
    ) -> Callable[[_Values], bool]:
        negated = isinstance(comparison, ast.NotEq | ast.NotIn)
        if isinstance(comparison, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List):
                raise ValueError(f"{self.text!r} needs a list after in; write in [...]")
            matches = [self._equality(left, word) for word in right.elts]
            return lambda values: any(match(values) for match in matches) != negated
        if isinstance(comparison, ast.Eq | ast.NotEq) and not (
            self._is_number(left) and self._is_number(right)
        ):
            match = self._equality(left, right)
            return lambda values: match(values) != negated
        compare = _ORDER.get(type(comparison))
        if compare is None:
            raise ValueError(f"{self.text!r} compares by identity; {_EXAMPLE}")
        one, other = self._number(left), self._number(right)
        return lambda values: compare(one(values), other(values))

    def _equality(self, left: ast.expr, right: ast.expr) -> Callable[[_Values], bool]:
        """Compare a parameter with a value of its domain, or with another parameter."""
        if not isinstance(left, ast.Name):
            left, right = right, left
        if not isinstance(left, ast.Name) or not isinstance(right, ast.Name | ast.Constant):
            raise ValueError(f"{self.text!r} compares words with a calculation; {_EXAMPLE}")
        path = left.id
        if isinstance(right, ast.Name):
            other = right.id
            return lambda values: alike(values[path], values[other])
        word = right.value
        if not self._space[path].contains(word):
            raise ValueError(f"{word!r} is not in the domain of {path}; correct it")
        return lambda values: alike(values[path], word)

    def _is_number(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            domain = self._space[node.id]
            return all(type(value) in (int, float) for value in domain.choices or ())
        return not isinstance(node, ast.Constant) or type(node.value) in (int, float)

    def _number(self, node: ast.expr) -> Callable[[_Values], float]:
        match node:
            case ast.BinOp(left, kind, right) if type(kind) in _ARITHMETIC:
                calculate = _ARITHMETIC[type(kind)]
                one, other = self._number(left), self._number(right)
                return lambda values: calculate(one(values), other(values))
            case ast.UnaryOp(ast.USub(), part):
                number = self._number(part)
                return lambda values: -number(values)
            case ast.Constant(float() | int() as value) if self._is_number(node):
                return lambda values: value
            case ast.Name() if self._is_number(node):
                path = node.id
                return lambda values: values[path]
        raise ValueError(f"{self.text!r} calculates with {ast.unparse(node)!r}; {_EXAMPLE}")


def satisfying(
    space: Mapping[str, Parameter], rules: Sequence[Rule], given: Mapping[str, Scalar]
) -> Iterator[dict[str, Scalar]]:
    """Yield those of 10,000 random configurations that meet all rules.

    The same configurations are drawn in each call with the same arguments.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path.
    rules
        Rules between the parameters.
    given
        Values of some parameters by dotted path, which every yielded configuration has.
    """
    draw = random.Random(0)
    for _ in range(10_000):
        values: dict[str, Scalar] = {}
        for name, parameter in space.items():
            unit = draw.random()
            if parameter.exists(values):
                values[name] = given[name] if name in given else parameter.at(unit)
        if given.keys() <= values.keys() and all(rule.holds(values) for rule in rules):
            yield values
