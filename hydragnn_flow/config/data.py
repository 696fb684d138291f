"""Schema of `data`: sources and data sets, splits, storage and reading."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from hydragnn_flow.config.base import Section, explain
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.config.sources import (
    AnySource,
    Level,
    SourceSection,
    TargetConfig,
    source_section,
)
from hydragnn_flow.errors import InputError


class SplitConfig(Section):
    """`data.split`: fractions of the training structures that are set aside for other splits.

    The run's seed decides which structures are drawn.
    """

    by: Literal["random", "composition", "group"] = "random"
    """Sampling of the splits: ``random``; ``composition``, the same fraction of each composition in
    every split; or ``group``, whole groups of structures by the key ``source.group``."""
    val: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for validation, which chooses epochs and trials. The default is a tenth, or none if
    the source gives a validation set."""
    calibration: float | None = Field(default=None, gt=0, lt=1)
    """Fraction used only for weights and error bars of the ensemble. If there is neither a fraction
    nor such a set in the source, weights and error bars are cross-fitted on the validation
    split."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for the final test. Required unless the source gives a test set."""

    def of(self, source: SourceSection) -> SplitConfig:
        """Return the split fractions for one source, after checks.

        The fraction ``val`` is 0.1 by default if the source has no validation set.

        Raises
        ------
        ValueError
            If the fractions do not fit the source.
        """
        given = source.roles[1:]
        for role in given:
            if getattr(self, role) is not None:
                raise ValueError(f"{role} is a set the source gives; remove the fraction")
        split = self
        if "val" not in given and split.val is None:
            split = split.model_copy(update={"val": 0.1})
        if "test" not in given and split.test is None:
            raise ValueError(
                "test is needed, as the source gives no test set; give a fraction such as 0.1"
            )
        fractions = (split.val, split.calibration, split.test)
        if sum(filter(None, fractions)) >= 1:
            raise ValueError("the fractions leave nothing to train on; give smaller ones")
        if split.by == "group" and not source.has_groups:
            raise ValueError("by = group needs source.group, the key of each structure's group")
        if split.by == "composition" and not source.of_atoms:
            raise ValueError("by = composition needs structures of atoms; draw at random")
        if split.by != "random" and not any(fractions):
            raise ValueError("by has nothing to draw, as the source gives all splits; remove it")
        return split

    def of_one_of_several(self, source: SourceSection) -> SplitConfig:
        """Return the split fractions for one of several data sets that share this section.

        A fraction is left out if the source of the data set has a set of its own for the split.

        Parameters
        ----------
        source
            Source of the data set.

        Raises
        ------
        ValueError
            If the fractions do not fit the source.
        """
        own: dict[str, None] = dict.fromkeys(source.roles[1:])
        shared = self.model_copy(update=own)
        if not any((shared.val, shared.calibration, shared.test)) and {"val", "test"} <= own.keys():
            shared = shared.model_copy(update={"by": "random"})
        return shared.of(source)


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class DataSet:
    """Data set to train on: a source of structures, with its name and split fractions."""

    name: str
    """Name of the data set, and of the branch of the network that learns it."""
    source: SourceSection
    """Source of its structures."""
    split: SplitConfig | None = None
    """Fractions for this data set; if None, those of ``data.split``."""

    def to_dict(self) -> dict[str, Any]:
        """Return `name`, `split` and the keys of the source in one dict, as in a configuration."""
        split = {} if self.split is None else {"split": self.split.model_dump(mode="json")}
        return {"name": self.name, **split, **self.source.model_dump(mode="json")}


def data_set(values: Any) -> DataSet:
    """Validate an item of `data.sources`: the keys `name` and `split`, and those of a source.

    Parameters
    ----------
    values
        Values of the item by key. A validated data set is returned unchanged.

    Raises
    ------
    ValueError
        If ``values`` is no mapping, or `name` or `split` is wrong.
    ValidationError
        If a key of the source is wrong.
    """
    if isinstance(values, DataSet):
        return values
    if not isinstance(values, dict):
        raise ValueError(f"must be a mapping with a name and a format, got {values!r}")
    rest = dict(values)
    name, split = rest.pop("name", None), rest.pop("split", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"needs a name of letters, digits, '_', '-' and '.', which is that of its branch, got "
            f"{name!r}"
        )
    source: SourceSection = source_section(rest)
    try:
        checked = None if split is None else SplitConfig.model_validate(split)
    except ValidationError as error:
        raise ValueError(str(explain(error, "split"))) from None
    return DataSet(name, source, checked)


AnyDataSet = Annotated[
    DataSet, PlainValidator(data_set), PlainSerializer(DataSet.to_dict, return_type=dict[str, Any])
]
"""Type of a field with a data set, written as a name, a split and the keys of its source."""


if TYPE_CHECKING:
    from hydragnn_flow.config.network import NetworkConfig

__all__ = ["DataConfig", "Mode", "SplitConfig"]

Mode = Literal["memory", "random", "stream"]
Energies = Literal["isolated"] | dict[str, float]
"""Reference energy by symbol of the element; ``isolated`` for those of isolated atoms."""


class DataConfig(Section):
    """`data`: one source of labelled structures, or several."""

    source: AnySource | None = None
    """Source of the structures. Required unless there are ``sources``."""
    sources: tuple[AnyDataSet, ...] | None = Field(default=None, min_length=1)
    """Data sets for one network. Each has a ``name``, the keys of its source and, if it needs one,
    a ``split`` of its own. Each is learnt by a branch of the network."""
    path: Path | None = None
    """Directory of the source's files (`--data` on the command line)."""
    split: SplitConfig = Field(default=SplitConfig(), validate_default=True)
    dtypes: Literal["hydragnn", "compact"] = "hydragnn"
    """Data types in the store: ``hydragnn`` keeps the type of each key, ``compact`` stores integers
    of nodes and edges in the narrowest type that holds them."""
    sampling: Literal["proportional", "equal"] | dict[str, Annotated[float, Field(gt=0)]] = (
        "proportional"
    )
    """Frequency with which training draws structures of each data set, that is of each branch of
    the network: ``proportional``, each structure equally often; ``equal``, as many structures of
    each data set; or a weight for each data set, ``{mptrj: 2, qm7x: 1}``, by its name, or by the
    index of its branch if data sets have no names. An epoch always has as many structures as the
    training split."""
    mode: Mode = "memory"
    """Access of training to the store: ``memory`` reads graphs from memory that the processes of a
    node share. If memory is too small, ``random`` reads single graphs from disk, and ``stream``
    reads blocks of many graphs."""
    suspicious: Literal["say", "refuse", "leave_out"] = "say"
    """Treatment of structures with impossible distances, labels far from all others, or copies with
    other labels: ``say`` names the worst, masks labels far off in training and validation if
    `missing` is ``mask``, and trains on all else; ``refuse`` stops the preparation, and
    ``leave_out`` leaves them out of the store."""
    missing: Literal["mask", "leave_out", "refuse"] = "mask"
    """Treatment of structures that lack some of the labels: ``mask`` learns and judges the others,
    ``leave_out`` leaves such structures out, and ``refuse`` stops the preparation."""
    element_energies: Energies | dict[str, Energies] | None = None
    """Reference energies of a potential's elements, in the unit of the energy: ``{Cu: -3.5}``; or
    ``isolated``, those of isolated atoms, which are then trained on; by default a fit to the
    training split. For several ``sources``, the energies of each by its name, or ``isolated``."""
    in_place: bool = False
    """Train on the files where they are, without a copy: for sources of the format ``hydragnn``
    that are too large to be copied. Duplicates are then not searched for."""

    @field_validator("sampling", mode="before")
    @classmethod
    def _a_way_or_weights(cls, sampling: Any) -> Any:
        if isinstance(sampling, dict) and sampling:
            for name, weight in sampling.items():
                is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
                if not is_number or not 0 < weight < math.inf:
                    raise ValueError(
                        f"the weight of {name} must be a number above 0, got {weight!r}; a data "
                        f"set that is not to be learnt has no place in sources"
                    )
            return {str(name): weight for name, weight in sampling.items()}
        if sampling not in ("proportional", "equal"):
            raise ValueError(
                f"must be proportional, equal, or a weight for each data set, got {sampling!r}"
            )
        return sampling

    @field_validator("element_energies", mode="before")
    @classmethod
    def _energies(cls, given: Any) -> Any:
        for energies in given.values() if _by_name(given) else [given]:
            if energies is not None and energies != "isolated" and not isinstance(energies, dict):
                raise ValueError(
                    f"must be isolated, or the energy of each element by its symbol, got {given!r}"
                )
            for symbol, energy in energies.items() if isinstance(energies, dict) else ():
                is_number = isinstance(energy, (int, float)) and not isinstance(energy, bool)
                if not is_number or not math.isfinite(energy):
                    raise ValueError(
                        f"the energy of {symbol} must be a finite number, got {energy!r}"
                    )
        return given

    @field_validator("split")
    @classmethod
    def _one_set_for_each_role(cls, split: SplitConfig, info: ValidationInfo) -> SplitConfig:
        source = info.data.get("source")
        return split if source is None else split.of(source)

    def _conflicts(self) -> Iterator[str]:
        if (self.source is None) == (self.sources is None):
            both = "both are there" if self.source else "none is there"
            yield f"give source, or sources for several data sets; {both}, so write one of them"
        several = self.sources or ()
        for number, one in enumerate(several):
            if any(one.name == other.name for other in several[:number]):
                yield f"sources.{number}: {one.name!r} is the name of two data sets; rename one"
            try:
                _split_of(one, self.split)
            except ValueError as error:
                yield f"sources.{number} ({one.name}): split.{error}"
        yield from _different_targets(several)
        yield from _different_graph_attr(several)
        given = self.element_energies
        if isinstance(given, dict) and (several or _by_name(given)):
            known = [one.name for one in several]
            if given.keys() != set(known) or not _by_name(given):
                yield (
                    "element_energies: give isolated, or for one source the energy of each "
                    "element, for several sources those of each by its name "
                    f"({', '.join(known) or 'there is only one'})"
                )
        if self.in_place:
            yield from self._not_in_place()
        if self.sampling != "proportional" and self.mode == "stream":
            yield (
                "sampling: a stream is read block by block, as the structures come; write mode: "
                "random, or remove sampling"
            )
        if self.sources is not None and isinstance(self.sampling, dict):
            names = {one.name for one in several}
            for name in sorted(self.sampling.keys() - names):
                hint = did_you_mean(name, names) or "; correct it or remove it"
                yield f"sampling.{name}: no data set of sources has this name{hint}"
            if missing := sorted(names - self.sampling.keys()):
                yield f"sampling: {missing[0]} has no weight; give it one"

    def _not_in_place(self) -> Iterator[str]:
        """Yield a sentence for each reason why training cannot read the files in place."""
        for number, one in enumerate(self.data_sets):
            key = f"sources.{number} ({one.name})" if one.name else "source"
            try:
                one.source.check_in_place()
            except ValueError as error:
                yield f"in_place: {key}: {error}"
            if one.split is not None and one.split.calibration is not None:
                yield (
                    f"in_place: {key}: the splits are those of the files, and split.calibration "
                    "would draw one; remove it, or leave in_place out"
                )
        for key, other in (("suspicious", "say"), ("missing", "mask")):
            if getattr(self, key) == "leave_out":
                yield (
                    f"in_place: the files keep all their structures, and {key} would leave some "
                    f"out; write {key}: {other} or refuse, or leave in_place out"
                )
        if self.dtypes != "hydragnn":
            yield (
                f"in_place: nothing is written that could be {self.dtypes}; remove dtypes, or "
                "leave in_place out"
            )

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """Data sets of the run, each with its name, source and fractions of the splits.

        The name is empty if there is only one data set, given as `source`.
        """
        if self.source is not None:
            return (DataSet("", self.source, self.split),)
        return tuple(replace(one, split=_split_of(one, self.split)) for one in self.sources or ())

    def remarks(self) -> list[str]:
        """Return a remark if energies of a table may be per atom, though the unit says a total."""
        tables = (one.source for one in self.data_sets if one.source.format in ("csv", "json"))
        targets: list[dict[str, TargetConfig]] = [getattr(one, "targets", {}) for one in tables]
        known = [one.get("energy") for one in targets if "forces" not in one]
        said = (
            "data: energy is taken as a total, as its unit is eV; write extensive: true if it is "
            "one, or eV/atom, and graph_pooling: mean, if it is per atom"
        )
        return [said] * any(one and (one.unit, one.is_extensive) == ("eV", None) for one in known)

    @property
    def branch_names(self) -> list[str]:
        """Names of the data sets in ``sources``, which are also those of the network's branches.

        A branch is the output heads of one data set. The list is empty for a single ``source``.
        """
        return [one.name for one in self.sources or ()]

    def for_network(self, network: NetworkConfig) -> DataConfig:
        """Return the section `data`, completed by what its sources need to know of the network.

        Parameters
        ----------
        network
            Network that is to be trained on the data.

        Raises
        ------
        ValueError
            If a source cannot provide what the network reads.
        """
        if self.source is not None:
            source = self.source.for_network(network)
            return self if source is self.source else self.model_copy(update={"source": source})
        known = [replace(one, source=one.source.for_network(network)) for one in self.sources or ()]
        return self.model_copy(update={"sources": tuple(known)})

    @property
    def folder(self) -> Path:
        """Directory that the file names of all sources are relative to."""
        return (self.path or Path()).absolute()

    @property
    def target_levels(self) -> dict[str, Level | None] | None:
        """Level (graph or node) of each target by name; None for an unknown level.

        The result is None instead of a dict if the targets are unknown.
        """
        found = [one.source.target_levels for one in self.data_sets]
        return next((levels for levels in found if levels is not None), None)

    @property
    def graph_attr(self) -> list[str]:
        """Names of the quantities of whole structures in `graph_attr`; empty if there are none."""
        named = (getattr(one.source, "graph_attr", None) for one in self.data_sets)
        return list(next(filter(None, named), ()))

    def check_files(self) -> None:
        """Check quickly that the file names of all sources match files, before data are read.

        Raises
        ------
        InputError
            If a name matches nothing; the message names path and key.
        """
        for number, one in enumerate(self.data_sets):
            try:
                one.source.check_files(self.folder)
            except InputError as error:
                key = f"data.sources.{number}." if one.name else "data.source."
                raise InputError(str(error).replace("data.source.", key)) from None


def _by_name(energies: Any) -> bool:
    """Return True if reference energies are a mapping of data sets, not of elements."""
    known = energies.values() if isinstance(energies, dict) else ()
    return any(one == "isolated" or isinstance(one, dict) for one in known)


def _split_of(one: DataSet, shared: SplitConfig) -> SplitConfig:
    if one.split is None:
        return shared.of_one_of_several(one.source)
    return one.split.of(one.source)


def _different_targets(data_sets: tuple[DataSet, ...]) -> Iterator[str]:
    known: list[tuple[str, dict[str, TargetConfig | None]]] = []
    for one in data_sets:
        levels = one.source.target_levels
        if levels is not None:
            described = getattr(one.source, "targets", None) or {}
            known.append((one.name, {name: described.get(name) for name in levels}))
    for name, targets in known[1:]:
        first, others = known[0]
        if missing := targets.keys() ^ others.keys():
            target = min(missing)
            has, lacks = (name, first) if target in targets else (first, name)
            yield (
                f"sources: {has} has the target {target!r}, and {lacks} has not; one network "
                f"learns the same targets from all of them, so name it in both or in none"
            )
            return
        for target, described in targets.items():
            other = others[target]
            here, there = (of and (", ".join(of.classes) or of.unit) for of in (described, other))
            if described and other and here != there:
                yield (
                    f"sources: {target} is in {there} in {first} and in {here} in {name}; convert "
                    f"one of them, as by unit_in_file"
                )


def _different_graph_attr(data_sets: tuple[DataSet, ...]) -> Iterator[str]:
    named = {one.name: getattr(one.source, "graph_attr", None) for one in data_sets}
    given = [(name, names) for name, names in named.items() if names]
    for name, names in given[1:]:
        first, others = given[0]
        if names != others:
            yield (
                f"sources: graph_attr is {', '.join(others)} in {first} and {', '.join(names)} in "
                f"{name}; name the same numbers in the same order"
            )
