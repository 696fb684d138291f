"""Domains of the hyper-parameters of a search, conditions for them to exist, and rules."""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from math import isclose
from typing import Any

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

    def at(self, unit: _Number) -> Scalar:
        """Return the value at a relative position in the domain, from 0 to less than 1."""
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


_SYNTAX = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.BinOp, ast.Add),
    *(ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Constant, ast.Tuple, ast.List),
    *(ast.Name, ast.Attribute, ast.Load),
)
_EXAMPLE = "write a comparison, as in hidden_dim % global_attn_heads == 0"


class Rule:
    """Condition that the parameters of every trial meet, such as ``hidden_dim <= 4 * num_radial``.

    Parameters
    ----------
    text
        Comparisons of arithmetic expressions, joined by ``and``, ``or`` and ``not``. A name is a
        path of the space, or its end if no other path ends alike.
    paths
        Dotted paths of the space.

    Raises
    ------
    ValueError
        If the text is no such expression, or names no parameter or an unknown one.
    """

    def __init__(self, text: str, paths: Iterable[str]) -> None:
        self.text = text
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{text!r} is no expression: {error.args[0]}; {_EXAMPLE}") from error
        for node in ast.walk(tree):
            if not isinstance(node, _SYNTAX):
                kind = type(node).__name__
                raise ValueError(f"{text!r} has more than comparisons ({kind}); {_EXAMPLE}")
        named = _Named([*paths])
        tree = ast.fix_missing_locations(named.visit(tree))
        self.paths = tuple(named.found)
        """Paths of the parameters that the rule names."""
        top = tree.body.op if isinstance(tree.body, ast.UnaryOp) else tree.body
        if not isinstance(top, ast.Compare | ast.BoolOp | ast.Not):
            raise ValueError(f"{text!r} is neither true nor false; {_EXAMPLE}")
        if not self.paths:
            raise ValueError(f"{text!r} names no parameter of space; {_EXAMPLE}")
        self._code = compile(tree, "<where>", "eval")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return True if parameters, by dotted path, meet the rule, or lack one that it names.

        A division by zero does not meet it.

        Raises
        ------
        ValueError
            If the expression cannot be computed, as a remainder of a word cannot.
        """
        if any(path not in values for path in self.paths):
            return True
        try:
            return bool(eval(self._code, {"__builtins__": {}, "values": values}))
        except ArithmeticError:
            return False
        except TypeError as error:
            at = ", ".join(f"{path} = {values[path]!r}" for path in self.paths)
            raise ValueError(f"{self.text!r} cannot be computed for {at}: {error}") from error


class _Named(ast.NodeTransformer):
    """Replaces names and dotted paths by the values of the parameters that they name."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self.found: dict[str, None] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._value(ast.unparse(node))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._value(node.id)

    def _value(self, name: str) -> ast.AST:
        fitting = [path for path in self._paths if f".{path}".endswith(f".{name}")]
        fitting = [name] if name in fitting else fitting
        if not fitting:
            ends = [path.rpartition(".")[2] for path in self._paths]
            hint = did_you_mean(name, [*self._paths, *ends]) or "; add it to space, or correct it"
            raise ValueError(f"{name!r} is not a parameter of space{hint}")
        if len(fitting) > 1:
            raise ValueError(f"{name!r} may be {' or '.join(fitting)}; write the whole path")
        self.found[fitting[0]] = None
        return ast.Subscript(ast.Name("values", ast.Load()), ast.Constant(fitting[0]), ast.Load())


def satisfying(
    space: Mapping[str, Parameter], rules: Iterable[Rule], given: Mapping[str, Scalar]
) -> Iterator[dict[str, Scalar]]:
    """Yield those of 10,000 random configurations that meet all rules, always the same ones.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path.
    rules
        Rules between the parameters.
    given
        Values that every configuration has.

    Raises
    ------
    ValueError
        If a rule cannot be computed for a configuration.
    """
    rules, draw = [*rules], random.Random(0)
    for _ in range(10_000):
        values: dict[str, Scalar] = {}
        for name, parameter in space.items():
            unit = draw.random()
            if all(values.get(other) in allowed for other, allowed in parameter.when.items()):
                values[name] = given[name] if name in given else parameter.at(unit)
        if all(rule.holds(values) for rule in rules):
            yield values
