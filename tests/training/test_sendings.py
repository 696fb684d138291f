"""A segment sent again: no sending spoils what another has written, and none begins anew."""

import errno
import itertools
import os
import subprocess
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from segment_cases import make_spec, network_with
from training_cases import CPU

from hydragnn_flow import files
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.checkpoints import checkpoint, sendings
from hydragnn_flow.training.checkpoints.checkpoint import (
    VERSION,
    checkpoints,
    checksum,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
)
from hydragnn_flow.training.checkpoints.sendings import Sending
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.runner import run_segment


@pytest.fixture
def sent(tmp_path, alloy_store):
    """A segment up to an epoch, sent as some attempt."""

    def made(attempt, epochs, folder="t", **changes):
        return make_spec(tmp_path / folder, alloy_store, epochs, attempt=attempt, **changes)

    return made


def names(folder):
    return {path.name for path in folder.iterdir()}


def stale(*arguments):
    """What a disk of a network does that is away."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_each_sending_has_a_file_of_its_own_and_takes_the_one_before_away(sent):
    first = sent("a", 1, may_have_begun=False)
    first.folder.rmdir()  # a driver leaves it to the first that has something to keep
    result = run_segment(first)
    assert (result.checkpoint, names(first.folder)) == ("checkpoint-a.pt", {"checkpoint-a.pt"})
    known = {"begin_with": result.checkpoint, "may_have_begun": False}
    later = run_segment(sent("b", 3, after_epoch=1, **known))
    assert (later.from_epoch, later.to_epoch) == (1, 3)
    assert (later.checkpoint, names(first.folder)) == ("checkpoint-b.pt", {"checkpoint-b.pt"})
    whole = run_segment(sent("a", 3, "whole"))
    np.testing.assert_array_equal([*result.history, *later.history], whole.history)
    # Where the known checkpoint is gone, another sending has got further.
    again = run_segment(sent("c", 4, **known))
    assert (again.from_epoch, again.status) == (3, "ok")
    # One that does nothing leaves what there is.
    again = run_segment(sent("d", 4))
    assert (again.status, again.checkpoint) == ("ok", "checkpoint-c.pt")
    stopped = run_segment(new := sent("a", 2, "new"), should_stop=lambda: True)
    assert (stopped.status, stopped.checkpoint) == ("interrupted", "")
    assert not checkpoints(new.folder)


def test_what_a_killed_sending_had_begun_to_write_is_taken_away(sent):
    again = sent("again", 1, may_have_begun=True)
    killed, at_work = (again.folder / f".checkpoint-{n}.pt.4711.tmp" for n in ("killed", "at_work"))
    killed.touch()
    os.utime(killed, (0, 0))
    at_work.touch()
    run_segment(again)
    assert names(again.folder) == {"checkpoint-again.pt", at_work.name}


def test_a_sending_that_was_taken_for_lost_replaces_nothing(sent):
    """Its node was away for a while, and the segment was sent again and got further."""
    run_segment(ahead := sent("ahead", 4))
    behind = sent("behind", 2, may_have_begun=False)
    assert run_segment(behind).to_epoch == 2
    epochs = [load_checkpoint(spec.checkpoint)["progress"]["epoch"] for spec in (ahead, behind)]
    assert epochs == [4, 2]
    again = run_segment(sent("again", 5))
    assert (again.from_epoch, again.to_epoch) == (4, 5)
    assert names(ahead.folder) == {"checkpoint-again.pt"}


def test_damaged_checkpoints_are_passed_over_where_another_can_be_read(sent):
    run_segment(spec := sent("a", 2))
    damaged = replace(spec, attempt="b").checkpoint
    damaged.write_bytes(spec.checkpoint.read_bytes()[:-100])
    assert run_segment(sent("d", 3)).from_epoch == 2
    assert names(spec.folder) == {"checkpoint-d.pt"}
    (spec.folder / "checkpoint-d.pt").write_bytes(b"no checkpoint")
    again = run_segment(sent("e", 3, after_epoch=2))
    assert "checkpoint-d.pt: is not a readable checkpoint" in again.passed_over
    assert (again.from_epoch, again.to_epoch, again.status) == (0, 3, "ok")
    whole = run_segment(sent("", 3, "whole"))
    assert (again.history, again.metrics) == (whole.history[2:], whole.metrics)
    assert names(spec.folder) == {"checkpoint-e.pt"}


def test_any_change_of_a_checkpoint_is_known(sent):
    result = run_segment(spec := sent("a", 1))
    whole, random = spec.checkpoint.read_bytes(), Random(0)
    assert checksum(spec.checkpoint) == result.checksum
    flips = [*range(8 * len(whole) - 200, 8 * len(whole))]  # the checksum itself
    damaged = [whole[:n_bytes] for n_bytes in [0, 1, 5, *range(len(whole) - 16, len(whole))]]
    for bit in random.sample(range(8 * len(whole)), 300) + flips:
        damaged.append(bytearray(whole))
        damaged[-1][bit // 8] ^= 1 << bit % 8
    for content in damaged:
        spec.checkpoint.write_bytes(content)
        with pytest.raises(InputError, match=r"checkpoint-a\.pt: is not a readable checkpoint"):
            load_checkpoint(spec.checkpoint)
    spec.checkpoint.write_bytes(whole)
    assert torch.load(spec.checkpoint, weights_only=True)["progress"]["epoch"] == 1


def test_parts_of_equal_size_have_checksums_of_their_own(tmp_path):
    """A CRC-32 over bytes that end with theirs is always the same."""
    files = [tmp_path / name for name in ("a", "b")]
    written = [save_checkpoint(file, {"n": n}) for n, file in enumerate(files)]
    assert files[0].stat().st_size == files[1].stat().st_size
    assert [*map(checksum, files)] == written
    assert written[0] != written[1]


def test_a_checkpoint_without_checksum_of_an_earlier_version_is_read(tmp_path):
    torch.save({"version": VERSION, "epoch": 3}, tmp_path / "checkpoint.pt")
    assert load_checkpoint(tmp_path / "checkpoint.pt")["epoch"] == 3


def test_a_checkpoint_that_its_own_sending_replaces_by_a_later_one_is_sound(sent):
    """Another began with it, wrote nothing, and so vouches for no bytes of it."""
    run_segment(sent("a", 1))
    other = run_segment(sent("b", 1))
    assert (other.checkpoint, other.checksum) == ("checkpoint-a.pt", None)
    run_segment(sent("a", 2))
    again = run_segment(sent("c", 3))
    assert (again.from_epoch, again.passed_over) == (2, "")


def test_a_disk_that_fails_takes_no_checkpoint_away_and_is_not_the_trials_fault(sent, monkeypatch):
    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    run_segment(further := sent("z", 2))
    run_segment(sent("a", 1, may_have_begun=False))
    real, failures = files.open_regular, iter([stale])

    def away(path):
        return (next(failures, real) if path == further.checkpoint else real)(path)

    monkeypatch.setattr(checkpoint, "open_regular", away)
    again = sent("b", 3)
    begun = Sending(again).begin(World(), CPU)
    assert begun is not None and begun["progress"]["epoch"] == 2, "it is waited for"
    failures = itertools.repeat(stale)
    monkeypatch.setattr(checkpoint, "SECONDS_TO_RECOVER", 0.0)
    with pytest.raises(InputError, match=r"checkpoint-z.* try again once its disk is") as caught:
        run_segment(again)
    assert getattr(files.passing(caught.value), "errno", None) == errno.ESTALE
    assert names(further.folder) == {"checkpoint-a.pt", "checkpoint-z.pt"}
    monkeypatch.setattr(sendings, "_SECONDS_BETWEEN_LOOKS", 0.0)
    with pytest.raises(InputError, match="try again once its disk is back") as caught:
        Sending(again).begin(_SecondRank(["checkpoint-z.pt", "2 0 []"] * 9), CPU)
    assert files.passing(caught.value) is not None
    # Nor is one passed over, or its remedy to delete it, that may not be read for other reasons.
    state = torch.load(further.checkpoint, weights_only=True)
    failures = iter([])
    save_checkpoint(further.checkpoint, state | {"version": VERSION + 7})
    with pytest.raises(InputError, match=r"checkpoint version \d+, .* reads 5; delete it to"):
        run_segment(again)
    assert names(further.folder) == {"checkpoint-a.pt", "checkpoint-z.pt"}


def test_a_checkpoint_that_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=r"checkpoint\.pt: .*is no regular file"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint-a.parts").mkdir()
    remove_checkpoint(tmp_path / "checkpoint.pt")
    assert not checkpoints(tmp_path)


@pytest.mark.parametrize("of", ["an earlier attempt", "another trial"])
def test_a_checkpoint_in_the_place_of_another_is_passed_over(sent, of):
    run_segment(other := sent("o", 1, "other", seed=1 if of == "another trial" else 5))
    result = run_segment(spec := sent("a", 2))
    known: dict[str, Any] = {"after_epoch": 2, "checksums": {result.checkpoint: result.checksum}}
    right = spec.checkpoint.read_bytes()
    for sure in ({"begin_with": result.checkpoint, "may_have_begun": False}, {}):
        spec.checkpoint.write_bytes(other.checkpoint.read_bytes())
        again = run_segment(sent("b", 3, **known, **sure))
        told = f"{spec.checkpoint}: is not a readable checkpoint (it is another than"
        assert again.passed_over.startswith(told)
        assert (again.from_epoch, again.to_epoch, again.status) == (0, 3, "ok")
        (spec.folder / again.checkpoint).unlink()
        spec.checkpoint.write_bytes(right)
        again = run_segment(sent("b", 3, **known, **sure))
        assert (again.from_epoch, again.passed_over) == (2, "")
        (spec.folder / again.checkpoint).unlink()
    # A member has nothing to begin with but its seed.
    spec.checkpoint.write_bytes(other.checkpoint.read_bytes())
    start = {"trial_checkpoint": str(spec.checkpoint), "kind": "member"}
    member = run_segment(sent("m", 2, "m", **known, **start))
    assert (member.from_epoch, member.status) == (0, "ok")
    assert member.passed_over.startswith(str(spec.checkpoint))


def test_the_checkpoint_before_is_there_until_the_next_is_whole(sent, monkeypatch):
    run_segment(first := sent("a", 1))

    def full(*arguments):
        assert "checkpoint-a.pt" in names(first.folder)
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"checkpoint-b\.pt"):
        patch.setattr(torch, "save", full)
        run_segment(sent("b", 2))
    assert names(first.folder) == {"checkpoint-a.pt"}
    assert run_segment(sent("c", 2)).from_epoch == 1


def test_a_disk_that_is_away_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    tries = iter([stale, torch.save])
    monkeypatch.setattr(torch, "save", lambda *arguments: next(tries)(*arguments))
    save_checkpoint(tmp_path / "checkpoint-a.pt", {"epoch": 3})
    assert load_checkpoint(tmp_path / "checkpoint-a.pt")["epoch"] == 3
    assert names(tmp_path) == {"checkpoint-a.pt"}


def test_a_folder_that_a_disk_does_not_show_is_not_begun_anew(sent, monkeypatch):
    assert run_segment(sent("a", 1)).status == "ok"
    monkeypatch.setattr(os, "scandir", stale)
    with pytest.raises(OSError, match="Stale"):
        run_segment(sent("b", 2))


def test_a_late_checkpoint_of_another_training_in_the_folder_does_not_count(sent):
    """What an earlier driver sent may write into the folder of a member that has its number."""
    run_segment(sent("old", 3))
    network = network_with(Training__Optimizer={"type": "AdamW", "learning_rate": 0.003})
    for other in ({"seed": 7}, {"network": network}):
        result = run_segment(sent("new", 1, **other))
        assert (result.status, result.from_epoch, result.to_epoch) == ("ok", 0, 1)
        run_segment(sent("old", 3, may_have_begun=False))


def test_more_micro_batches_continue_the_same_training(sent):
    run_segment(sent("a", 1))
    network = network_with(Training__accumulation_steps=2)
    assert run_segment(sent("b", 2, network=network)).from_epoch == 1


def test_a_member_begins_with_what_is_left_of_its_trial(sent):
    """A sending that was taken for lost has replaced what the ledger names by its own."""
    run_segment(trial := sent("late", 2))
    named = str(trial.folder / "checkpoint-named.pt")
    member = run_segment(sent("m", 3, "m", trial_checkpoint=named))
    assert (member.status, member.from_epoch) == ("ok", 2)
    nothing = str(trial.folder / "none" / "checkpoint-named.pt")
    with pytest.raises(InputError, match=r"checkpoint-named\.pt: is not a readable"):
        run_segment(sent("n", 3, "n", trial_checkpoint=nothing))


class _SecondRank(World):
    """The second of two ranks: the first names a checkpoint, and how far that had got."""

    def __init__(self, said):
        super().__init__(1, 2)
        object.__setattr__(self, "_said", iter(said))

    def told(self, text, device, rank=0):
        return text if rank else next(self._said)

    def sum(self, values):
        return values


def test_ranks_begin_with_the_same_checkpoint_while_another_sending_writes_it(sent, monkeypatch):
    monkeypatch.setattr(sendings, "_SECONDS_BETWEEN_LOOKS", 0.0)
    run_segment(sent("a", 2, may_have_begun=False))
    later = sent("b", 3, may_have_begun=True)
    name = "checkpoint-a.pt"
    before, now = "1 0 []", sendings._moment(load_checkpoint(later.folder / name))

    # When the first rank looked, it was at its first epoch; it looks again.
    def begun(sending, *said):
        state = sending.begin(_SecondRank(said), CPU)
        return state and state["progress"]["epoch"]

    assert begun(Sending(later), name, before, name, now) == 2
    with pytest.raises(InputError, match=r"checkpoint-a\.pt: another process goes on replacing it"):
        begun(Sending(later), *[name, before] * 9)
    # It is gone when this rank reads it, and another is there when the first looks again.
    assert begun(Sending(later), "checkpoint-0.pt", before, name, now) == 2
    # So it is with the trial that a member starts from, as long as it has nothing of its own.
    trial = {"may_have_begun": True, "trial_checkpoint": str(later.folder / name)}
    member = Sending(sent("c", 3, "m", **trial))
    assert begun(member, "", "", name, before, name, now) == 2
    assert member.checkpoint is None
    # What one rank cannot read is said by all.
    with pytest.raises(InputError, match=r"checkpoint-0\.pt: is not a readable checkpoint"):
        begun(Sending(later), *["checkpoint-0.pt", before] * 9)


@pytest.fixture
def full_disk(tmp_path):
    """With a checkpoint, and room for nothing else beside a file to delete, `ballast`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    (disk := tmp_path / "disk").mkdir()
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

    state = {"model": torch.arange(20_000.0)}
    monkeypatch.setattr("hydragnn_flow.files.time.sleep", make_room)
    save_checkpoint(full_disk / "checkpoint.pt", state)
    assert not (full_disk / "ballast").exists(), "it was not waited"
    assert torch.equal(load_checkpoint(full_disk / "checkpoint.pt")["model"], state["model"])


def test_a_disk_that_stays_full_is_named_and_keeps_the_last_checkpoint(full_disk, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_TO_RECOVER", 1.0)
    path = full_disk / "checkpoint.pt"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        save_checkpoint(path, {"model": torch.arange(20_000.0)})
    assert load_checkpoint(path)["model"].shape == (1,)
    assert sorted(entry.name for entry in full_disk.iterdir()) == ["ballast", "checkpoint.pt"]
