"""Storage of the study: an Optuna journal file, to which records are written in groups."""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileSymlinkLock
from optuna.storages.journal import _storage as journal
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config.origins import JOURNAL
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.files import AppendOnly, drop_torn_record, is_there, open_regular, write_text
from hydragnn_flow.garbage import no_collection
from hydragnn_flow.plain_files import from_json
from hydragnn_flow.search.records import ORIGIN, TrialRecord, own, record_of

STUDY = "search"
"""Name of the study in a run's journal."""
MEMBERS = "members"
"""User attribute of a study: numbers of the trials of the ensemble's members, once chosen."""
_KEY = b',"crc":'
_DAMAGE = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = json.JSONEncoder(separators=(",", ":")).encode
# Optuna parses a domain for every parameter of every trial that it reads or writes. There are few
# different ones, and there is no public hook to cache them.
journal.json_to_distribution = cache(journal.json_to_distribution)  # type: ignore[attr-defined]


def end_of(journal: Path) -> Path:
    """Return the path of the file that marks where a study's journal ends, beside the journal.

    A driver writes the file at its end, and deletes it before it appends to the journal again. It
    holds the checksum of the journal's last line, so that a loss of last lines is noticed.
    """
    return journal.with_name(f"{journal.name}.end")


def _decoded(line: bytes) -> dict[str, Any]:
    """Decode a line of a journal; raise ValueError if it is no valid JSON."""
    try:
        record: dict[str, Any] = _decode(line)
    except (msgspec.DecodeError, RecursionError):  # NaN, which Optuna writes; or damage
        record = from_json(line)
    return record


def _of_another(line: bytes) -> dict[str, Any]:
    """Decode another program's line; a trial that it adds, not enqueued, is marked as its own."""
    record = _decoded(line)
    is_creation = record["op_code"] == JournalOperation.CREATE_TRIAL
    if is_creation and record.get("state") != TrialState.WAITING:
        record["user_attrs"] = {ORIGIN: "another program", **record.get("user_attrs", {})}
    return record


class GroupCommitBackend(BaseJournalBackend):
    """Optuna journal backend that reads its file once and appends records to it in groups.

    The last key of each line, which Optuna ignores, is the CRC-32 of the line and of all lines
    before it, so changed, lost, duplicated or moved lines are detected. Lines of other programs,
    such as enqueued trials or notes of optuna-dashboard, have no CRC and are accepted as they are.

    Parameters
    ----------
    path
        Path of the journal. A last line without its newline is still being written, and ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        """Number of the last line read."""
        self.none_waiting: set[int] = set()
        """Ids of studies that are known to have no enqueued trial."""
        self._file, self._end = AppendOnly(path), end_of(path)
        self._lock, self._has_lock = JournalFileSymlinkLock(str(path.absolute())), False
        self._crc, self._ended, self._place = 0, b"", 0
        # Read first: a driver that continues deletes it before it appends.
        with suppress(FileNotFoundError), open_regular(self._end) as file:
            self._ended = file.read(32)
        self._unread: Iterable[dict[str, Any]] = self._stored()
        self._pending: list[str | dict[str, Any]] = []
        """Lines of the next commit; records that create a trial stay dicts, as they may grow."""
        self._created: dict[int, dict[str, Any]] = {}

    def _lines(self) -> Iterator[tuple[bytes, bytes, int | None]]:
        """Yield each complete line not yet read, its content, and its CRC; None is another's."""
        if not is_there(self.path):
            return
        with open_regular(self.path) as file:
            if self._place:
                file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written; the rest may come before the next read
                self.line += 1
                self._place += len(line)
                content, key, crc = line.rpartition(_KEY)
                yield line, content, int(crc[:-2]) if key and crc[:-2].isdigit() else None

    def _stored(self) -> Iterator[dict[str, Any]]:
        has_end = not self._ended
        for line, content, crc in self._lines():
            if crc is not None:
                self._crc = zlib.crc32(content, self._crc)
                if crc != self._crc:
                    raise ValueError("it is not what was written after the line before it")
                has_end |= self._ended == b"%d\n" % self._crc
            # A journal without any checksum is that of another study.
            yield _of_another(line) if crc is None and self._crc else _decoded(line)
        if not has_end:
            raise InputError(
                f"{self.path}: line {self.line} is not the last one by {self._end.name}, and no "
                f"other follows; restore both from a copy, or delete {self._end} to go on from "
                f"there"
            )

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the journal's records that Optuna's storage has not read yet.

        ``log_number_from`` is ignored.
        """
        unread, self._unread = self._unread, ()
        return unread

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Keep new records of the study in memory until the next :meth:`commit`.

        Raises
        ------
        TypeError
            If a value cannot be written as JSON.
        """
        for log in logs:
            if log.get("state") == TrialState.WAITING:
                self.none_waiting.clear()
            operation = log["op_code"]
            if operation == JournalOperation.SET_TRIAL_PARAM and log["trial_id"] in self._created:
                self._pending.append(log)  # folded into the creation later
            else:
                line = _encode(log)  # encoded now, so that an error has no effect
                is_creation = operation == JournalOperation.CREATE_TRIAL
                self._pending.append(log if is_creation else line)
        self._unread = [*self._unread, *logs]

    def lock(self) -> bool:
        """Take Optuna's lock of the journal; return False if it is held already."""
        if self._has_lock:
            return False
        with suppress(OSError):  # a full disk, which the commit will name, or one without links
            self._has_lock = self._lock.acquire()
        return True

    def unlock(self) -> None:
        """Release Optuna's lock of the journal, if it is held."""
        if self._has_lock:
            self._has_lock = False
            with suppress(RuntimeError):  # others took it after its grace period
                self._lock.release()

    def look(self) -> None:
        """Read what other programs have appended to the journal since it was last read.

        Raises
        ------
        InputError
            If that is damaged.
        CampaignStopped
            If a trial was created there while uncommitted ones of this process have its number.
        """
        self._unread = unread = [*self._unread]
        with _damage_named(self):
            unread += (_of_another(line) for line, _, crc in self._lines() if crc is None)
        creates = any(log["op_code"] == JournalOperation.CREATE_TRIAL for log in unread)
        if creates and self._created:
            raise CampaignStopped(
                f"{self.path}: another program created a trial at the same moment; give the same "
                f"command again, nothing recorded is lost"
            )
        if creates:
            self.none_waiting.clear()

    def created(self, trial_id: int) -> None:
        """Note that the last appended record creates the trial with the id ``trial_id``.

        :meth:`fold_parameter` can then add parameters to that record.
        """
        creation = self._pending[-1]
        assert isinstance(creation, dict)
        self._created[trial_id] = creation

    def fold_parameter(self, trial_id: int) -> None:
        """Move the last appended record, a parameter, into the record that creates its trial.

        If the creating record is on disk already, the parameter stays a record of its own.
        """
        creation = self._created.get(trial_id)
        if creation is not None:
            parameter = self._pending.pop()
            assert isinstance(parameter, dict)
            name = parameter["param_name"]
            creation.setdefault("params", {})[name] = parameter["param_value_internal"]
            creation.setdefault("distributions", {})[name] = parameter["distribution"]

    def commit(self, *, is_last: bool = False) -> None:
        """Write the records kept since the last commit to the journal: one append, one fsync.

        Parameters
        ----------
        is_last
            True for the last commit of a driver, which also writes the file of :func:`end_of`.

        Raises
        ------
        OSError
            If the disk does not take the records. The file is then unchanged, the records are kept,
            and the next commit tries again.
        CampaignStopped
            If another program has created a trial since :meth:`look`.
        """
        if self._pending:
            self.lock()
            if self._created:
                self.look()
            lines, crc = [], self._crc
            for log in self._pending:
                content = (log if isinstance(log, str) else _encode(log))[:-1].encode()
                crc = zlib.crc32(content, crc)
                lines.append(b"%b%b%d}\n" % (content, _KEY, crc))
            if self._ended:
                self._end.unlink(missing_ok=True)
                self._ended = b""
            self._file.append(b"".join(lines))
            self._crc = crc
            self._pending.clear()
            self._created.clear()
        self.unlock()
        if is_last and self._crc and not self._ended:
            with suppress(OSError):  # without it, only a loss of the last lines goes unnoticed
                write_text(self._end, f"{self._crc}\n")
                self._ended = b"%d\n" % self._crc


class StudyStorage(JournalStorage):
    """Storage of an Optuna study in a journal file; changes are on disk after :meth:`commit`.

    Changes are visible in this process at once; commit them before acting on them. The process that
    opens the storage must hold the run directory's lock. Others may enqueue trials by Optuna's own
    storage; :meth:`begin` reads them, and keeps more from coming until the next commit.

    Parameters
    ----------
    path
        Path of the journal file. It is created if missing, and a last record that a crash left
        incomplete is removed.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._journal = GroupCommitBackend(path)
        with _damage_named(self._journal), no_collection():
            super().__init__(self._journal)
        drop_torn_record(path)  # only now: a damaged journal stays as it is

    def __reduce__(self) -> str:
        raise TypeError("a study's journal has one writer: its storage stays with the driver")

    def __enter__(self) -> StudyStorage:
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()

    def begin(self) -> None:
        """Read what other programs have written, and lock them out until the next commit.

        Call it before trials are created, as their numbers follow from their order in the file.
        """
        if self._journal.lock():
            with suppress(OSError):  # the commit waits for the disk
                self._journal.look()

    def unlock(self) -> None:
        """Let other programs write again although uncommitted changes are given up."""
        self._journal.unlock()

    def commit(self, *, is_last: bool = False) -> None:
        """Write all changes of the study since the last commit to disk.

        ``is_last`` and errors are those of :meth:`GroupCommitBackend.commit`.
        """
        self._journal.commit(is_last=is_last)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trial_id = super().create_new_trial(study_id, template_trial)
        self._journal.created(trial_id)
        return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        value = float(param_value_internal)  # JSON cannot hold NumPy's numbers
        super().set_trial_param(trial_id, param_name, value, distribution)
        self._journal.fold_parameter(trial_id)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        # Study.ask searches all trials for enqueued ones each time, 4 ms among 8,000.
        waiting = states == (TrialState.WAITING,)
        if waiting and study_id in self._journal.none_waiting:
            return []
        found = super().get_all_trials(study_id, deepcopy, states)
        if waiting and not found:
            self._journal.none_waiting.add(study_id)
        return found


def read_journal(path: Path) -> JournalStorage:
    """Read a study's journal file into an Optuna storage, even while a driver appends to it.

    Changes to the returned storage stay in memory.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    backend = GroupCommitBackend(path)
    with _damage_named(backend):
        return JournalStorage(backend)


def read_trials(run_directory: str | Path) -> list[TrialRecord]:
    """Return records of all trials that a run's search has started, in the order of their numbers.

    The list is empty before the search starts.
    """
    path = Path(run_directory) / JOURNAL
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = read_journal(path)
    if not storage.get_all_studies():
        return []
    study = optuna.load_study(study_name=STUDY, storage=storage)
    return [record_of(trial) for trial in own(study.get_trials(deepcopy=False))]


def record_members(journal: Path, trials: Sequence[int]) -> None:
    """Write the numbers of the trials of the ensemble's members into an ended search's study.

    They are an attribute of the study, `MEMBERS`, as Optuna lets nobody change ended trials.
    """
    with StudyStorage(journal) as storage:
        study = optuna.load_study(study_name=STUDY, storage=storage)
        if study.user_attrs.get(MEMBERS) != [*trials]:
            study.set_user_attr(MEMBERS, [*trials])
        storage.commit(is_last=True)


@contextmanager
def _damage_named(backend: GroupCommitBackend) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"{backend.path}: line {backend.line} is damaged ({type(error).__name__}: {error}); "
            f"restore the file from a copy; or, of a search for networks, move it and "
            f"{end_of(backend.path).name} away: the next start of the run makes it anew from "
            f"segments.jsonl"
        ) from None
