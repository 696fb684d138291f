"""Trainings that have ended, a line of JSON each: an interrupted run continues with the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from model_accuracy.outcome import Outcome


class Trainings:
    """Outcomes on disk; threads may ask for them at once.

    Parameters
    ----------
    path
        The file; need not exist.
    code
        Of both sides, so that trainings of other code are done anew.
    """

    def __init__(self, path: Path, code: Any) -> None:
        self._path = path
        self._file = Lock()
        self._code = hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:12]

    def get(self, training: dict[str, Any], run: Callable[[], Outcome]) -> Outcome:
        """The outcome of a training, which is run if the file has none."""
        key = {**training, "code": self._code}
        with self._file:
            lines = self._lines()
        for line in lines:
            if line["training"] == key:
                errors = line["outcome"].pop("errors")
                return Outcome(**line["outcome"], errors=errors and tuple(errors))
        outcome = run()
        added = json.dumps({"training": key, "outcome": asdict(outcome)})
        with self._file:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(f"{self._text()}{added}\n", encoding="utf-8")
        return outcome

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._text().splitlines()]

    def _text(self) -> str:
        """Whole lines: the last is cut short where the program was killed while it wrote."""
        if not self._path.exists():
            return ""
        text = self._path.read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1]
