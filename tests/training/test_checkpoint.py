"""Checkpoints on a disk that is full for a while, or for good."""

import os
import subprocess

import pytest
import torch

from hydragnn_flow.training.checkpoints import checkpoint
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
STATE = {"model": torch.arange(20_000.0)}


@pytest.fixture
def full_disk(tmp_path):
    """With a checkpoint, and room for nothing else beside a file to delete, `ballast`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)])
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        save_checkpoint(disk / "checkpoint.pt", {"model": torch.zeros(1)})
        (disk / "ballast").write_bytes(bytes(256 * 1024))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_checkpoint_waits_for_room(full_disk, monkeypatch):
    def make_room(_):
        (full_disk / "ballast").unlink()

    monkeypatch.setattr("hydragnn_flow.files.time.sleep", make_room)
    save_checkpoint(full_disk / "checkpoint.pt", STATE)
    assert not (full_disk / "ballast").exists(), "it was not waited"
    assert torch.equal(load_checkpoint(full_disk / "checkpoint.pt")["model"], STATE["model"])


def test_a_disk_that_stays_full_is_named_and_keeps_the_last_checkpoint(full_disk, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_TO_RECOVER", 1.0)
    path = full_disk / "checkpoint.pt"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        save_checkpoint(path, STATE)
    assert load_checkpoint(path)["model"].shape == (1,)
    assert sorted(entry.name for entry in full_disk.iterdir()) == ["ballast", "checkpoint.pt"]
