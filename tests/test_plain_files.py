"""JSON and YAML of strangers: whatever is wrong with a file is said in one sentence."""

import os
import socket
from pathlib import Path

import pytest
import yaml

from hydragnn_flow import InputError, plain_files
from hydragnn_flow.plain_files import BoundedLoader, PlainLoader, read_json, read_yaml, sound


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))


@pytest.mark.parametrize("read", [read_json, read_yaml])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "is no regular file"),
        (a_socket, "cannot be read"),
        (Path.mkdir, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.symlink_to("/nowhere"), "cannot be read"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not valid"),
        (lambda path: path.write_text("[" * 100_000), "nested too deeply"),
        (lambda path: path.write_text('{"a":' * 100_000), "nested too deeply"),
        (lambda path: path.write_text("[" * 80 + "]" * 80), "nested too deeply"),
        (lambda path: path.write_text('{"a": ' * 80 + "1" + "}" * 80), "nested too deeply"),
        (lambda path: path.write_text("9" * 5000), "is not valid"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, read, make, says):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    make(file)
    with pytest.raises(InputError) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}: ") and says in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_a_file_may_be_as_large_as_its_limit(tmp_path, monkeypatch):
    monkeypatch.setitem(plain_files._MOST_BYTES, "JSON", 7)
    file = tmp_path / "file"
    file.write_text('{"a":1}')
    assert read_json(file) == {"a": 1}
    file.write_text('{"a":1} ')
    with pytest.raises(InputError, match="too large"):
        read_json(file)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)

MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 8)}]}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "too many values"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: &a {b: *a}", "nested too deeply"),
        ("a: 2001-02-30", "is not valid YAML"),
        ("- a", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("!!python/object/apply:os.system [true]", "is not valid YAML"),
        ('a: !!timestamp "abc"', "a value is not what its tag says"),
        ('a: !!bool "q"', "a value is not what its tag says"),
        ('a: !!int ""', "a value is not what its tag says"),
        ('a: !!float "_"', "a value is not what its tag says"),
        (f"a: 1{':1' * 200}.5", "a value is not what its tag says"),
        (f"a: 1{':1' * 60_000}.5", "too many digits"),
        (f"a: !!int 1{':1' * 60_000}", "too many digits"),
        ('a: "\\UFFFFFFFF"', "is not valid YAML"),
        (MERGES, "too many values are merged"),
        ("a: &a {b: 1, c: 2}\nd: {<<: [" + "*a, " * 2_000 + "]}", "too many values are merged"),
        ("a: {" + "<<: {}, " * 2_000 + "}", "too many values are merged|is given twice"),
        (BOMB.replace("[*", "!!pairs [k: *").replace(",*", ",k: *"), "too many values"),
    ],
)
@pytest.mark.parametrize("loader", [BoundedLoader, PlainLoader])
def test_yaml_that_means_harm_is_refused(tmp_path, monkeypatch, text, says, loader):
    monkeypatch.setattr(plain_files, "_MOST_MERGED", 1000)
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_yaml(file, loader)


def test_mappings_may_be_merged_and_values_repeated(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("a: &a {b: 1}\nc: {<<: [*a, {d: 2}], e: 3}\n")
    assert read_yaml(file)["c"] == {"b": 1, "d": 2, "e": 3}
    one = [1, 2]
    file.write_text(yaml.safe_dump({"a": one, "b": one}))
    assert "&id001" in file.read_text()
    assert read_yaml(file) == {"a": one, "b": one}


@pytest.mark.parametrize(
    "error", [KeyError("weight"), TypeError("no number"), IndexError("out"), OverflowError("big")]
)
def test_errors_at_the_content_of_a_file_name_it(error):
    with (
        pytest.raises(InputError, match=r"^f\.json: is damaged \(.*\); take it from a copy$"),
        sound(Path("f.json")),
    ):
        raise error
    with pytest.raises(InputError, match=r"^mine$"), sound(Path("f.json")):
        raise InputError("mine")
