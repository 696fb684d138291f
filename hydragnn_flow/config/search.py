"""The search: its space, its rungs, its budget."""

from __future__ import annotations

import difflib

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section

Scalar = bool | int | float | str
# Named here because Parameter's own fields `int` and `float` hide the types inside its body.
_IntRange = tuple[int, int]
_FloatRange = tuple[float, float]


class Parameter(Section):
    """One hyper-parameter: exactly one of ``choices``, ``int`` and ``float``."""

    choices: tuple[Scalar, ...] | None = None
    """Values to choose from."""
    int: _IntRange | None = None
    """Smallest and largest integer."""
    float: _FloatRange | None = None
    """Smallest and largest number."""
    log: bool = False
    """Search the range on a logarithmic scale."""
    when: dict[str, tuple[Scalar, ...]] = Field(default={})
    """The parameter exists only while each named one, listed before it, has one of these values:
    ``{Architecture.mpnn_type: [SchNet]}``."""

    @model_validator(mode="after")
    def _one_domain(self) -> Parameter:
        if sum(domain is not None for domain in (self.choices, self.int, self.float)) != 1:
            raise ValueError("give exactly one of choices, int and float")
        if self.choices is not None and not self.choices:
            raise ValueError("choices is empty; give at least one value")
        if self.choices is not None and self.log:
            raise ValueError("log belongs to int and float ranges; remove it")
        for bounds in (self.int, self.float):
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"the range {list(bounds)} is empty; give [smallest, largest]")
            if bounds is not None and self.log and bounds[0] <= 0:
                raise ValueError(f"the range {list(bounds)} must be above zero for log: true")
        return self

    def examples(self) -> tuple[Scalar, ...]:
        """Values that together test the domain: every choice, or both ends of the range.

        Of integers the ends' neighbours as well: some only make sense as multiples.
        """
        if self.int is None:
            return self.choices or self.float or ()
        low, high = self.int
        return tuple(sorted({low, min(low + 1, high), max(high - 1, low), high}))


class SearchConfig(Section):
    """Successive halving over trials that Optuna proposes."""

    trials: int = Field(ge=1)
    """Number of configurations to try."""
    min_epochs: int = Field(default=2, ge=1)
    """Epochs of the first rung."""
    reduction_factor: int = Field(default=3, ge=2)
    """Each rung trains this many times longer than the one before and keeps one in as many; the
    last rung is ``Training.num_epoch``."""
    space: dict[str, Parameter] = Field(min_length=1)
    """Dotted path into ``NeuralNetwork`` → a domain."""

    @model_validator(mode="after")
    def _conditions_name_parameters(self) -> SearchConfig:
        seen: set[str] = set()
        for name, parameter in self.space.items():
            for other, values in parameter.when.items():
                if other not in seen:
                    near = difflib.get_close_matches(other, seen, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise ValueError(
                        f"space.{name}.when names {other!r}, which is not a parameter listed "
                        f"before it{hint}"
                    )
                if not values:
                    raise ValueError(f"space.{name}.when lists no value of {other!r}")
                domain = self.space[other].choices
                if domain is not None and not set(values) <= set(domain):
                    raise ValueError(
                        f"space.{name}.when lists values that are not choices of {other!r}"
                    )
            seen.add(name)
        return self

    def rungs(self, num_epoch: int) -> tuple[int, ...]:
        """Epochs at which a trial is judged; the last is ``num_epoch``.

        Parameters
        ----------
        num_epoch
            Epochs of a trial that no rung ends, `Training.num_epoch`.
        """
        epochs, rungs = self.min_epochs, []
        while epochs < num_epoch:
            rungs.append(epochs)
            epochs *= self.reduction_factor
        return (*rungs, num_epoch)
