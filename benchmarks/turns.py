"""Several ways to do the same, measured in turns; and processes to measure in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any, TypeVar, cast

import torch
from results import Line, Number, say

T = TypeVar("T")


@dataclass(frozen=True)
class Turns:
    """Seconds that each contender took for a unit of work, one figure for each round."""

    seconds: dict[str, list[float]]

    def rate(self, name: str) -> float:
        """Units of work per second, the median over the rounds."""
        return 1 / self.of(name)

    def of(self, name: str) -> float:
        """Seconds for a unit, the median over the rounds [s]."""
        return median(self.seconds[name])

    def ratio(self, name: str, other: str) -> Number:
        """Speed over the other's: the rounds found the machine the same for both."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        ratios = [theirs / ours for ours, theirs in pairs]
        return Number(median(ratios), "", min(ratios), max(ratios))

    def line(self, what: str, name: str, other: str, unit: str, **more: Any) -> Line:
        """Rates of both with their ratio, and more fields of the line."""
        ratio = self.ratio(name, other)
        spread = (ratio.low or 0.0, ratio.high or 0.0)
        rates = self.rate(name), unit, other, self.rate(other)
        return Line(what, *rates, ratio.value, spread=spread, **more)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Turns:
    """Let contenders, each of which says how long it took, work in turns; first once unmeasured."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    # The objects that contenders keep must not slow down the garbage collection of all.
    gc.collect()
    gc.freeze()
    try:
        for work in contenders.values():
            work()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}: {', '.join(contenders)}")
            for name, work in contenders.items():
                found[name].append(work())
    finally:
        gc.unfreeze()
    return Turns(found)


class Spoken:
    """A process in this folder that answers line by line; it may say why it ends in ``errors``."""

    def __init__(self, *command: str | Path, errors: int | None = None) -> None:
        self.process = Popen(
            command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            encoding="utf-8",
            cwd=Path(__file__).parent,
        )

    def tell(self, line: str) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Wait for its next line.

        Raises
        ------
        RuntimeError
            Where it ends; the message is the end of what it said.
        """
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            errors = self.process.stderr
            raise RuntimeError((errors and errors.read()[-500:]) or "a process ended")
        return line


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process that has done nothing but imports, and raise what it raises.

    Raises
    ------
    RuntimeError
        If the process is killed.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_alone, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        result, error = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}") from None
    process.join()
    if error is not None:
        raise error
    return cast(T, result)


def _alone(pipe: Connection, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    answer: tuple[object, Exception | None]
    try:
        answer = function(*arguments), None
    except Exception as error:
        answer = None, error
    with suppress(BrokenPipeError):  # nobody waits for it any more
        pipe.send(answer)
