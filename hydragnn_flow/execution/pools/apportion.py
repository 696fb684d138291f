"""Apportionment of a site's blocks between its two pools."""

from __future__ import annotations


def apportion(needed: tuple[int, int], has: tuple[int, int], most: int) -> tuple[int, int]:
    """Divide the blocks of a site between its two pools.

    Parameters
    ----------
    needed
        Blocks that each pool could use.
    has
        Blocks each has.
    most
        Blocks there may be.

    Returns
    -------
    tuple of int
        Number of blocks of each: what it can use, reduced in proportion if that is too much, and at
        least one. A single block stays where it is for as long as it is used.
    """
    first, second = (min(number, most) for number in needed)
    if first + second <= most:
        return first, second
    if most == 1:
        return (0, 1) if has[1] and not has[0] else (1, 0)
    second = min(max(1, round(most * second / (first + second))), most - 1)
    return most - second, second
