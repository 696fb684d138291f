"""JSON and YAML files from unknown sources, or damaged ones: read without harm.

Only regular files are read, and none larger or more deeply nested than this package writes. Every
fault of a file ends in one sentence that names it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.log import tell

_logger = logging.getLogger(__name__)

CORRECT = "correct the file"
FROM_A_COPY = "take it from a copy"
_MOST_BYTES = {"JSON": 1 << 28, "YAML": 1 << 22}
_WRONG = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
_MOST_MERGED = 100_000
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class BoundedLoader(yaml.SafeLoader):
    """PyYAML loader that refuses endless merges (`<<`) and numbers of more than 1,000 digits."""

    _merged = 0

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in (_INT, _FLOAT) and len(node.value) > 1000:
            raise ValueError("a number has too many digits")
        return super().construct_object(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self._merged += 1 + len(node.value)  # again each time that another node merges them
        if self._merged > _MOST_MERGED:
            raise ValueError("too many values are merged")


class PlainLoader(BoundedLoader):
    """PyYAML loader that reads numbers as YAML 1.2 does, and refuses duplicate keys.

    PyYAML itself reads ``1e-3``, without a point, as text, ``12:00:00`` as a number to the base 60,
    ``010`` as eight, and keeps the last of two equal keys.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                said = f"{key.value!r} is given twice"
                raise yaml.MarkedYAMLError(problem=said, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_DIGITS = list("-+0123456789")
PlainLoader.add_implicit_resolver(_INT, re.compile(r"[-+]?(0|[1-9][0-9]*)$"), _DIGITS)
PlainLoader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), _DIGITS)


def shipped(folder: str, pattern: str) -> list[Path]:
    """Return the paths of files that come with the package, in the order of their names.

    Parameters
    ----------
    folder
        Name of a folder at the top of the repository, of which an installed package has a copy.
    pattern
        Pattern of the files' names, such as ``*.py``.
    """
    package = Path(__file__).resolve().parent
    copy = package / f"_{folder}"
    return sorted((copy if copy.is_dir() else package.parent / folder).glob(pattern))


def or_shipped(folder: Path, name: str | Path) -> Path:
    """Return a path relative to a folder; that of the package's own copy of a ``configs/FILE``.

    The user is told of a copy, which takes the place of a file that is not there.
    """
    path, name = folder / name, Path(name)
    if name.parent == Path("configs") and not os.path.lexists(path):
        for own in shipped("configs", "*.*"):
            if own.name == name.name:
                tell(_logger, "%s is not here: the one of the package is taken", path)
                return own
    return path


def read_json(path: str | Path, remedy: str = CORRECT) -> Any:
    """Read a JSON file that holds a mapping, and return it as a dict.

    Raises
    ------
    InputError
        If the file cannot be read, is invalid or holds no mapping. In the last two cases the
        message ends with ``remedy``, such as :data:`CORRECT`.
    """
    return _read(path, "JSON", from_json, remedy)


def read_yaml(path: Path, loader: Any = BoundedLoader, remedy: str = CORRECT) -> Any:
    """Read a YAML file that holds a mapping, and return it as a dict.

    ``loader`` is the PyYAML loader. Errors are those of :func:`read_json`.
    """
    return _read(path, "YAML", lambda text: yaml.load(text, loader), remedy)


def from_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid, gives a key twice or is nested too deeply."""
    try:
        return _bounded(json.loads(text, object_pairs_hook=_each_key_once))
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextmanager
def sound(file: Path, remedy: str = FROM_A_COPY) -> Iterator[None]:
    """Report errors in a ``with`` block that uses a file's content as one InputError.

    Its message says that ``file`` is damaged, and ends with ``remedy``. Errors of values, types,
    keys, attributes and arithmetic are converted.
    """
    try:
        yield
    except InputError:
        raise
    except _WRONG as error:
        said = f"no key {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(f"{file}: is damaged ({said}); {remedy}") from error


def _read(path: str | Path, form: str, parse: Callable[[str], Any], remedy: str) -> Any:
    try:
        with open_regular(Path(path)) as file:
            content = file.read(_MOST_BYTES[form] + 1)
        if len(content) > _MOST_BYTES[form]:
            raise ValueError("too large")
        values = _bounded(parse(content.decode()))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (RecursionError, *_WRONG, yaml.YAMLError) as error:  # ValueError: an impossible date
        said = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
        if not isinstance(error, (ValueError, yaml.YAMLError)):
            is_deep = isinstance(error, RecursionError)
            said = "nested too deeply" if is_deep else "a value is not what its tag says"
        what = f"is not valid {form}" if remedy == CORRECT else "is damaged"
        raise InputError(f"{path}: {what} ({said}); {remedy}") from None
    if not isinstance(values, dict):
        what = "must hold a mapping" if remedy == CORRECT else "is damaged (no mapping)"
        raise InputError(f"{path}: {what}; {remedy}")
    return values


def _bounded(values: Any) -> Any:
    """Return the values; raise ValueError for more than 20 million values, or 64 levels or more.

    A few lines of YAML can refer to each other so that they contain endlessly many values.
    """
    level: list[Any] = [[values]]
    total = 0
    for _ in range(64):
        total += sum(map(len, level))
        if total > 20_000_000:
            raise ValueError("too many values")
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for of in inner for value in of if isinstance(value, (dict, list, tuple))]
        if not level:
            return values
    raise ValueError("nested too deeply")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; refuse duplicate keys, of which `json` keeps only the last."""
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key!r} is given twice in a mapping")
        mapping[key] = value
    return mapping
