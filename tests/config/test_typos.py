"""A typo in any key of a configuration is refused in one line that names it."""

from pathlib import Path

import pytest
import yaml

from hydragnn_flow.config import resolve_config
from hydragnn_flow.errors import InputError

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"
SHIPPED = yaml.safe_load(QUICKSTART.read_text())


def places(values, before=()):
    """The path of every key."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield (*before, key)
            yield from places(value, (*before, key))


def renamed(values, place, name):
    """The values with the key at a place renamed, in the same order."""
    first, *rest = place
    return {
        name if key == first and not rest else key: renamed(value, rest, name)
        if key == first and rest
        else value
        for key, value in values.items()
    }


@pytest.mark.parametrize("place", [*places(SHIPPED)], ids=".".join)
def test_a_typo_in_any_key_is_named(place):
    """A letter too few, too many, swapped, wrong, or in the other case."""
    word = place[-1]
    for typo in (word[:-1], word[1:], f"{word}s", word[1::-1] + word[2:], word.swapcase()):
        if typo == word:
            continue
        with pytest.raises(InputError) as caught:
            resolve_config(renamed(SHIPPED, place, typo), QUICKSTART)
        message = str(caught.value)
        assert message.startswith(str(QUICKSTART)) and "\n" not in message
        # The name of a parameter may be named where a condition needs it.
        assert typo in message or f"names {word!r}" in message
