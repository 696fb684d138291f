"""Dotted paths into nested mappings, lists and branches."""

from __future__ import annotations

from typing import Any

from hydragnn_flow.errors import InputError

_BRANCH = {"type", "architecture"}
"""Keys of a branch of output heads; ``architecture`` holds its layers."""


def set_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value that a dotted path names.

    In a list, a number selects an item, counted from 0, and a name applies to all items. The
    `architecture` of a branch of output heads may be left out, so that a path into heads is the
    same with one branch and with several. A single value set in place of a list fills all its
    items. Missing mappings are created.

    Parameters
    ----------
    values
        Mappings and lists, changed in place.
    path
        Dotted path such as ``Architecture.output_heads.graph.1.dim_headlayers.0``.
    value
        New value at the path.

    Raises
    ------
    InputError
        If the path leads through something that is neither a mapping nor a list, or to an item that
        a list does not have.
    """
    _set(values, path.split("."), value, path)


def _set(place: Any, parts: list[str], value: Any, path: str) -> None:
    key, *rest = parts
    if isinstance(place, list):
        if key.isdecimal():
            if int(key) >= len(place):
                raise InputError(
                    f"network: {path!r} asks for place {key} of a list of {len(place)}, which are "
                    f"counted from 0; name one there is"
                )
            if rest:
                _set(place[int(key)], rest, value, path)
            else:
                place[int(key)] = value
            return
        if not place:
            raise InputError(f"network: {path!r} leads into a list that is empty; fill it")
        for one in place:
            _set(one, parts, value, path)
        return
    if not isinstance(place, dict):
        raise InputError(f"network: {path!r} does not lead into a mapping or a list")
    if place.keys() == _BRANCH and key not in _BRANCH:
        _set(place["architecture"], parts, value, path)
    elif rest:
        _set(place.setdefault(key, {}), rest, value, path)
    else:
        there = place.get(key)
        if isinstance(there, list) and not isinstance(value, list):
            value = [value] * len(there)
        place[key] = value
