"""A typo in any key of a configuration is refused in one line that names it."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import resolve_config
from hydragnn_flow.errors import InputError


def places(values, before=()):
    """The path of every key."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield (*before, key)
            yield from places(value, (*before, key))


@st.composite
def typos(draw, word):
    """A word with a letter too many, too few, wrong, swapped or in the other case."""
    letters = st.sampled_from("abcdefghijklmnopqrstuvwxyz_.")
    at = draw(st.integers(0, len(word) - 1))
    kind = draw(st.sampled_from(["insert", "delete", "replace", "swap", "case"]))
    if kind == "insert":
        return word[:at] + draw(letters) + word[at:]
    if kind == "delete":
        return word[:at] + word[at + 1 :]
    if kind == "replace":
        return word[:at] + draw(letters) + word[at + 1 :]
    if kind == "swap":
        return word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    return word[:at] + word[at].swapcase() + word[at + 1 :]


QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"
SHIPPED = yaml.safe_load(QUICKSTART.read_text())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_random_typo_in_any_key_is_named(data):
    place = data.draw(st.sampled_from(list(places(SHIPPED))))
    typo = data.draw(typos(place[-1]).filter(lambda word: word != place[-1]))
    values = copy.deepcopy(SHIPPED)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    items = list(inner.items())
    inner.clear()
    inner.update({typo if key == place[-1] else key: value for key, value in items})

    with pytest.raises(InputError) as caught:
        resolve_config(values, QUICKSTART)
    message = str(caught.value)
    assert message.startswith(str(QUICKSTART)) and "\n" not in message
    assert typo in message
