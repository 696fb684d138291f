"""Dotted paths into nested values, lists and branches included."""

from __future__ import annotations

from typing import Any

from hydragnn_flow.errors import InputError

_BRANCH = {"type", "architecture"}
"""Keys of a branch among output heads; its layers are in the second."""


def set_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value where a dotted path leads.

    In a list, a number is one of its places, counted from 0, and a name leads into all of them.
    A branch of output heads need not be entered by its `architecture`, so that a path into heads
    is the same with one branch and with several. A single value that is put where a list is takes
    each of its places. Mappings on the way that are missing are made.

    Parameters
    ----------
    values
        Mappings and lists, which are changed.
    path
        As ``Architecture.output_heads.graph.1.dim_headlayers.0``.
    value
        What to put there.

    Raises
    ------
    InputError
        If the path leads through something that is neither a mapping nor a list, or to a place
        that a list does not have.
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
