"""Damaged stores: a clear sentence, and nothing that ADIOS2 could hang on or die of."""

import json
import re
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydragnn_flow.data import GraphStore, check_store
from hydragnn_flow.data.reading.graph_store import open_foreign
from hydragnn_flow.data.store.manifest import _checksum as manifest_checksum
from hydragnn_flow.data.store.manifest import load_manifest
from hydragnn_flow.errors import InputError, StoreError

FILES = ("data.0", "md.0", "md.idx", "mmd.0", "blocks.npz")


def changed(content):
    """With other bytes in the middle; the size stays."""
    middle = len(content) // 2
    other = bytes(byte ^ 0xFF for byte in content[middle : middle + 16])
    return content[:middle] + other + content[middle + 16 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "changed": changed,
    "longer": lambda content: content + b"\0",
}
RECORD = {"size": 1, "crc32": None}


def seal(path, values):
    """Write a manifest with a checksum that fits."""
    values["crc32"] = manifest_checksum(values)
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_damaged_file(copied, no_adios2, damage, name):
    """All but changed payload is noticed when the store is opened, before ADIOS2 sees a file."""
    file = copied / "shard-00000.bp" / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    complaint = rf"shard-00000\.bp/{name} .*store is damaged"
    if name == "data.0" and damage == "changed":
        GraphStore.open(copied)
    else:
        with pytest.raises(StoreError, match=complaint):
            GraphStore.open(copied)
    if damage == "changed":
        with pytest.raises(StoreError, match=complaint):
            check_store(copied)


@pytest.mark.parametrize("mode", ["memory", "random", "stream"])
@pytest.mark.parametrize("place", [0.05, 0.999])
def test_changed_payload(copied, mode, place):
    """Whatever bytes have changed, no wrong number is read: blocks are verified before."""
    payload = copied / "shard-00000.bp" / "data.0"
    content = payload.read_bytes()
    start = int(place * len(content))
    payload.write_bytes(content[:start] + bytes(byte ^ 0xFF for byte in content[start:]))
    with pytest.raises(StoreError, match=r"shard-00000\.bp/data\.0 has changed"):
        store = GraphStore.open(copied, mode)
        for name in store.splits:
            for batch in store[name].batches([np.array([0]), np.array([1])]):
                assert torch.isfinite(batch.pos).all()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "version 2 is not the version 3"),
        ({"surprise": 1}, "surprise"),
        ({"splits": {"trainset": {"graphs": "many"}}}, "splits.trainset.graphs"),
        ({"splits": {"trainset": {"graphs": 13}}}, "do not add up"),
        ({"keys": {}}, "x are missing"),
        ({"shards": []}, "shards"),
        ({"shards": [{"path": "../s.bp", "files": {}, "splits": {}}]}, "shards.0.path"),
        ({"shards": [{"path": "s.bp", "files": {"../x": RECORD}, "splits": {}}]}, "shards.0.files"),
    ],
)
def test_wrong_manifest(copied, no_adios2, change, complaint):
    path = copied / "manifest.json"
    seal(path, json.loads(path.read_text()) | change)
    with pytest.raises(StoreError, match=rf"manifest\.json: .*{complaint}"):
        GraphStore.open(copied)


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_bit_of_the_manifest(written, tmp_path, position, bit):
    """It is refused; what JSON does not tell apart, as blanks, is read as before."""
    content = bytearray((written / "manifest.json").read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    (tmp_path / "manifest.json").write_bytes(content)
    try:
        assert load_manifest(tmp_path) == load_manifest(written)
    except StoreError as error:
        assert "manifest.json" in str(error)


def test_manifest_that_contradicts_the_data(copied):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    for sizes in (manifest["splits"], manifest["shards"][0]["splits"]):
        sizes["valset"]["edges"] += 1
    seal(path, manifest)
    with pytest.raises(InputError, match=r"valset has .*contradicts"):
        check_store(copied)


def test_what_is_no_store(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        GraphStore.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"manifest\.json is missing"):
        GraphStore.open(tmp_path)


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[]", '{"version": 3, "version": 3}'])
def test_a_manifest_that_is_none_is_said_in_a_sentence(copied, no_adios2, text):
    (copied / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json: is damaged"):
        GraphStore.open(copied)


def tampered(store, name, at, content):
    """Write into a shard's file as a stranger could: all checksums are right."""
    path = store / "manifest.json"
    values = json.loads(path.read_text())
    (shard,) = values["shards"]
    file = store / shard["path"] / name
    data = bytearray(file.read_bytes())
    data[at : at + len(content)] = content
    file.write_bytes(data)
    shard["files"][name] = {"size": len(data), "crc32": zlib.crc32(data)}
    seal(path, values)


# Offsets at which ADIOS2 dies of a signal as it opens or reads the file.
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_strangers_shard_takes_down_another_process(copied, part):
    size = next(copied.glob("*/mmd.0")).stat().st_size
    tampered(copied, "mmd.0", int(size * part) // 8 * 8, b"\xff" * 7 + b"\x7f" + b"\xff" * 56)
    (shard,) = copied.glob("*/mmd.0")
    for read in (open_foreign, check_store):
        with pytest.raises(StoreError, match=rf"^{re.escape(str(shard.parent))}\b.*damaged"):
            read(copied)
