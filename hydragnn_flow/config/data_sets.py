"""Data sets of `data.sources`: named sources, each learnt by its own branch of the network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError

from hydragnn_flow.config.base import explain
from hydragnn_flow.config.sources import SourceSection, source_section
from hydragnn_flow.config.splits import SplitConfig

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class DataSet:
    """Named source among several data sets, with its split."""

    name: str
    """Name of the data set, and of the branch of the network that learns it."""
    source: SourceSection
    """Source of its structures."""
    split: SplitConfig | None = None
    """Fractions for this data set; if None, those of ``data.split``."""

    def to_dict(self) -> dict[str, Any]:
        """Return name, split and the source's keys in one mapping, as a configuration has them."""
        split = {} if self.split is None else {"split": self.split.model_dump(mode="json")}
        return {"name": self.name, **split, **self.source.model_dump(mode="json")}


def data_set(values: Any) -> DataSet:
    """Validate one data set: the keys `name` and `split`, and those of its source.

    Raises
    ------
    ValueError
        If it is not a mapping, or its name is not valid.
    ValidationError
        If another key is wrong.
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
"""Data set, written as the keys of its source plus a name."""
