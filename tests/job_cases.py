"""Jobs that tests run: calls in this process, as a site's pool has them end, or in a trainer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution import Rank
from hydragnn_flow.execution.jobs import Workers
from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.workers import answers
from hydragnn_flow.placement import Host
from hydragnn_flow.segment import Call, Place, SegmentResult, Status, TrainingOutcome

Machine = Callable[[str, Mapping[str, Any]], TrainingOutcome | None]
"""How a call with an argument ends on a node; None if the function is to be called."""


def ended(status: Status, reason: str = "") -> TrainingOutcome:
    return TrainingOutcome.cut_short(status, reason)


class CallsHere(Workers):
    """Workers that call functions at once in this process; a bad node is soon free again."""

    def __init__(self, machine: Machine = lambda node, argument: None, *nodes: str) -> None:
        self.machine, self.nodes = machine, nodes or ("here",)
        self.health = NodeHealth()
        self.ran: list[tuple[str, str]] = []
        """Node, and what the call was about."""

    def update(self, demand: int) -> None:
        self.health.check(len(self.nodes), set())

    def hosts(self) -> Sequence[Host]:
        good = [node for node in self.nodes if not self.health.is_suspect(node)]
        return [Host(node, "block") for node in good or self.nodes]

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        self.health.record(node, work, worked)

    def avoid(self, node: str, reason: str) -> None:
        self.health.condemn(node, reason)

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        call = ranks[0].spec
        assert isinstance(call, Call)
        self.ran.append((node, str(call)))
        outcome = self.machine(node, call.argument) or _outcome(call)
        future: Future[list[SegmentResult]] = Future()
        future.set_result([SegmentResult.of(call, outcome, Place(node=node, gcds=["0"]))])
        return future


def _outcome(call: Call) -> TrainingOutcome:
    module, _, name = call.function.partition(":")
    try:
        answer = getattr(importlib.import_module(module), name)(call.argument)
    except InputError as error:
        answer = {"is_store": isinstance(error, StoreError)}
        return TrainingOutcome(status="wrong_input", reason=str(error), answer=answer)
    return TrainingOutcome(status="ok", answer=answer or {})


def answer(function: str, argument: Mapping[str, Any]) -> dict[str, Any]:
    """What a trainer process answers to a call, of this process."""
    call = Call(kind="trial", number=0, directory="", function=function, argument=argument)
    request = {"spec": call.to_dict(), "rank": 0, "world": 1, "rendezvous": None, "device": "cpu"}
    return answers._answer(request, answers._Asked(), lambda message: None)
