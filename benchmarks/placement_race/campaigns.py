"""What comes of the GCDs' time: under a walltime, by the members, and in a whole campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from results import Line

from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble.selection import Choice, Selection
from hydragnn_flow.files import unsynced
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from placement_race.synthetic import (
    CALM,
    EPOCHS,
    GCDS_OF_A_NODE,
    STEPS,
    Foreseen,
    staged,
)

_TWICE = 2.0
_WALLTIME = 7200.0
_MEMBERS = 15
# Time of the members where every GCD is used without a loss [s].
_IDEAL = 3600.0


class Held(NamedTuple):
    """How many GCDs there are, and the campaign on them."""

    nodes: int
    trials: int
    blocks: int = 1


def walltime(folder: Path, store: GraphStore, held: Held) -> Line:
    """Trials of up to 2 h in batch jobs of 2 h, which wait for 10 min in the queue."""
    with unsynced():
        stage = staged(
            *(folder, store, held.trials, held.nodes * GCDS_OF_A_NODE, 56.0),
            share=1,
            slower=_TWICE,
            conditions=replace(CALM, queue_seconds=600.0, node_seconds=30.0, losses=1e-3),
            machine={"walltime": _WALLTIME, "blocks": held.blocks, "scheduler": "slurm"},
        )
        TrialPhase(stage.context).run(stage.dispatch)
    kept = sum(_kept(stage.foreseen, result) for result in stage.context.directory.results())
    share = 100 * kept / stage.workers.blocks.node_seconds / GCDS_OF_A_NODE
    what = f"{held.trials:,} trials of up to 2 h in {held.blocks} jobs of 2 h: GCD time kept"
    return Line(what, share, "%", at_least=85.0, is_detail=True)


def members(folder: Path, store: GraphStore, nodes: int) -> list[Line]:
    """Members of a hundredfold cost, from scratch, on nodes that are held until the last ends.

    Each GCD has a batch of its own. All would be at work for an hour without a loss.
    """
    sections: dict[str, Any] = {
        "ensemble": {"size": _MEMBERS, "epochs": EPOCHS, "start": "scratch"},
        "resources": {"batch_per_gcd": True},
    }
    gcds = nodes * GCDS_OF_A_NODE
    with unsynced():
        # Trials whose times are spread evenly over the whole range, as far as 400 can be.
        search = staged(folder, store, 400, 512, 56.0, sections=sections)
        trials = TrialPhase(search.context).run(search.dispatch)

        def seconds_of(trial: TrialRecord) -> float:
            return search.foreseen.of(trial.parameters).seconds

        by_time = sorted(trials, key=seconds_of)
        places = [round(k * (len(by_time) - 1) / (_MEMBERS - 1)) for k in range(_MEMBERS)]
        chosen = [by_time[place] for place in places]
        stage = staged(
            *(folder, store, 400, gcds, 56.0),
            share=1,
            widest=gcds,
            slower=_IDEAL * gcds / sum(map(seconds_of, chosen)),
            sections=sections,
        )
        line = [Choice(trial.number, 0, "") for trial in chosen]
        MemberPhase(stage.context, Selection(line, []), trials).run(stage.dispatch)
    found = [one for one in stage.context.directory.results() if one.kind == "member"]
    work = sum(_trained(one) * stage.foreseen.of(one.parameters).seconds for one in found)
    held = gcds * stage.workers.ended
    what = f"{_MEMBERS} members on {nodes:,} nodes: GCD time"
    occupied = 100 * stage.workers.gcds.occupied / held
    return [
        Line(f"{what} at work", occupied, "%", at_least=90.0, is_detail=True),
        Line(f"{what} of the same work on one GCD", 100 * work / held, "%", is_detail=True),
    ]


def whole(folder: Path, store: GraphStore, held: Held) -> list[Line]:
    """Search and ensemble on nodes that are held from the first segment to the last."""
    sections = {
        "ensemble": {"size": _MEMBERS, "epochs": 3 * EPOCHS, "strategy": "top"},
        "resources": {"batch_per_gcd": True},
    }
    gcds = held.nodes * GCDS_OF_A_NODE
    with unsynced():
        stage = staged(folder, store, held.trials, gcds, 56.0, widest=64, sections=sections)
        run_phases(stage.context, lambda: stage.workers)
    workers = stage.workers
    what = f"{held.trials:,} trials and {_MEMBERS} members on {held.nodes} nodes"
    total = gcds * workers.ended
    return [
        Line(f"{what}: GCD time at work", 100 * workers.gcds.occupied / total, "%", at_least=85.0),
        Line(f"{what}: computing", 100 * workers.gcds.busy / total, "%", is_detail=True),
        Line(f"{what}: search ends", workers.search_ended, "s", is_detail=True),
        Line(f"{what}: all ends", workers.ended, "s", is_detail=True),
    ]


def _trained(result: SegmentResult) -> float:
    """Part of a trial's training that a segment has added to what is kept."""
    return result.steps / STEPS / EPOCHS


def _kept(foreseen: Foreseen, result: SegmentResult) -> float:
    """GCD time of that [s]."""
    width = len(result.gcds) or 1
    return _trained(result) * foreseen.of(result.parameters).on(width, result.batches) * width
