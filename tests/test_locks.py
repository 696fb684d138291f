"""Locks on files: one holder, whatever becomes of the file."""

import os
from pathlib import Path

import pytest

from hydragnn_flow import locks
from hydragnn_flow.locks import Held, is_locked, local_locks, locked


def test_a_lock_has_one_holder(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with locked(path, 0.0):
        assert is_locked(path)
        with pytest.raises(Held), locked(path, 0.1):
            pass
    assert not is_locked(path)


def test_the_lock_of_a_file_that_was_deleted_keeps_nobody_out(tmp_path):
    """Who opened it before and locks it after has nothing: others lock the file that is there."""
    path = tmp_path / "lock"
    take = locks.take
    deleted: list[int] = []

    def deleting(lock):
        if not deleted:
            deleted.append(os.fstat(lock).st_ino)
            path.rename(tmp_path / "gone")  # not freed, for its number not to be used again
        return take(lock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "take", deleting)
        with locked(path, 0.0):
            assert path.stat().st_ino != deleted[0]
            assert is_locked(path)


MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
10.0.0.1@o2ib:/orion /lustre/orion lustre rw,flock,lazystatfs 0 0
10.0.0.2@o2ib:/old /lustre/old lustre rw,localflock,lazystatfs 0 0
home:/ccs /ccs/home nfs rw,vers=3,nolock,local_lock=all,addr=10.0.0.3 0 0
home:/proj /ccs/proj nfs4 rw,vers=4.2,local_lock=none 0 0
server:/x /my\040data nfs rw,local_lock=flock 0 0
tmpfs /lustre/old/good tmpfs rw 0 0
broken line here at all
"""


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/home/abc/runs", ""),
        ("/lustre/orion/abc/runs", ""),
        ("/lustre/old/runs", "localflock"),
        ("/lustre/older/runs", ""),
        ("/lustre/old/good/runs", ""),
        ("/ccs/home", "local_lock=all"),
        ("/ccs/proj/runs", ""),
        ("/my data/runs", "local_lock=flock"),
    ],
)
def test_locks_that_other_nodes_do_not_see_are_found_out(tmp_path, monkeypatch, path, option):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS.strip())
    monkeypatch.setattr(locks, "MOUNTS", mounts)
    assert local_locks(Path(path)) == option
    monkeypatch.setattr(locks, "MOUNTS", tmp_path / "not Linux")
    assert local_locks(Path(path)) == ""
