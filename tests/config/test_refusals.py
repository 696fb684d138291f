"""Whatever is wrong in a configuration is refused in one line that names the file and the key."""

from pathlib import Path

import pytest
import yaml

from hydragnn_flow.config import load_config, resolve_config
from hydragnn_flow.errors import InputError

TABLE = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
SHORT = {
    "Architecture": ("network", "NeuralNetwork", "Architecture"),
    "Training": ("network", "NeuralNetwork", "Training"),
    "space": ("search", "space"),
}


def spoilt(values, change, changes):
    """A copy with the changes of a row of the table."""
    for path, value in changes.items():
        first, *rest = path.split("/")
        place = (*SHORT.get(first, (first,)), *rest)
        if place[-1] == "+":
            for key, inner in value.items():
                values = change(values, (*place[:-1], key), inner)
        elif value != "ABSENT":
            values = change(values, place, value)
        elif place[-1] in values or len(place) > 1:
            values = change(values, place, ...)
    return values


def refused(path, *said):
    with pytest.raises(InputError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    ("changes", "said"), TABLE, ids=[str(changes)[:60] for changes, _ in TABLE]
)
def test_what_is_wrong_is_named(changes, said, quickstart, change, write):
    refused(write(spoilt(quickstart, change, changes)), *said.split(" … "))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("Architecture/hidden_dim", 10**400, "hidden_dim is out of range, got 1000"),
        ("Architecture/radius", 10**400, "radius is out of range"),
        ("space/Architecture.hidden_dim", {"int": [16, 10**400]}, "space.Architecture.hidden_dim"),
    ],
)
def test_numbers_that_nothing_can_hold_are_named(place, value, said, quickstart, change, write):
    refused(write(spoilt(quickstart, change, {place: value})), said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((text, "is not valid YAML") for text in ("name: [", "a: b: c", "\t- x", "? [1]: 2")),
        (
            "a: b: c",
            "is not valid YAML (mapping values are not allowed here in line 1, column 5",
        ),
        ("name: 2024-13-45", "is not valid YAML"),
        (b"name: \xff\xfe", "is not valid YAML"),
        *((text, "must hold a mapping") for text in ("", "- name", "42", "quickstart")),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(content, said, tmp_path):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    refused(path, f"{path}: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ('{"NeuralNetwork": {},}', "is not valid JSON"),
        ("[]", "must hold a mapping"),
        ('{"NeuralNetwork": {"a": 1, "a": 2}}', "the key 'a' is given twice"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("{}", "'NeuralNetwork' is required"),
        ('{"NeuralNetwork": {"Architecture": {"mpnn_type": "MAC"}}}', "mpnn_type"),
        (None, "run.yaml: network: there is no file"),
    ],
)
def test_the_network_file_is_named(text, said, quickstart, write):
    path = write({**quickstart, "network": "network.json"})
    if text is not None:
        path.with_name("network.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(path.with_name("network.json")) in str(caught.value)
    assert said in str(caught.value) and "\n" not in str(caught.value)


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
