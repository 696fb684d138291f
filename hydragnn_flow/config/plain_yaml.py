"""YAML as people expect it to be read."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hydragnn_flow.plain_files import BoundedLoader

_FLOAT, _INT = "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"


class PlainLoader(BoundedLoader):
    """YAML 1.2's numbers, and no key twice.

    PyYAML takes ``1e-3``, without a point, for text, ``12:00:00`` for a number to the base 60,
    ``010`` for eight, and of two equal keys the last.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_DIGITS = list("-+0123456789")
PlainLoader.add_implicit_resolver(_INT, re.compile(r"[-+]?(0|[1-9][0-9]*)$"), _DIGITS)
PlainLoader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), _DIGITS)


def in_a_line(value: Any) -> str:
    """A value as YAML in one line, in the order it has."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()
