"""Forecast of when a run will end, from what its trials have taken so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from hydragnn_flow.report.stage import Stage
from hydragnn_flow.segment import SegmentResult

# Fewer trials do not tell how long a trial takes.
_LEAST_TRIALS = 3


def predicted_end(stage: Stage, now: float) -> float | None:
    """Predict when the search and its members are done, as Unix time [s]; None if too early.

    The rest of the search goes on at the rate of this driver so far. Members take as long for an
    epoch as the best trials did, once one has ended as long as that, and keep all GCDs busy that
    the run has used. Rungs end bad trials early and first, several trials may have shared a GCD,
    and on many GCDs a member takes more of their time than on one, so the prediction is rough.

    Parameters
    ----------
    stage
        Stage of the run.
    now
        Unix time [s].
    """
    if stage.phase == "calibration":
        return now
    gcds = len({place for result in stage.results for place in result.places})
    members = _member_seconds(stage) if stage.has_members else 0.0
    if stage.phase not in ("search", "members") or not gcds or members is None:
        return None
    if stage.phase == "search":
        search = _search_seconds(stage)
        return None if search is None else now + search + members / gcds
    end = min(stage.begun.values(), default=now) + members / gcds
    return end if end > now else None


def told_end(end: float, now: float) -> str:
    """A predicted end in words, in local time."""
    left = end - now
    form = "%H:%M" if time.localtime(end)[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M"
    if left < 60:
        return "any minute now"
    minutes = left / 60
    words = f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
    return f"about {time.strftime(form, time.localtime(end))}, in {words}"


def _search_seconds(stage: Stage) -> float | None:
    own, here = _spent(stage.results), _spent(stage.results, since=stage.started)
    ended = [own[t.number] for t in stage.trials if t.state != "running"]
    running = [own[t.number] for t in stage.trials if t.state == "running"]
    ends = (r.ended for r in stage.results if r.kind == "trial" and r.started >= stage.started > 0)
    passed = max(ends, default=0.0) - stage.started
    if len(ended) < _LEAST_TRIALS or passed <= 0 or not sum(ended):
        return None
    mean = sum(ended) / len(ended)
    left = sum(max(mean - seconds, 0.0) for seconds in running)
    left += max(stage.planned_trials - len(stage.trials), 0) * mean
    return left / (sum(here.values()) / passed)


def _member_seconds(stage: Stage) -> float | None:
    """GCD-seconds of all members together."""
    known = [r for r in stage.results if r.kind == "member" and r.status == "ok"]
    costs = [r.seconds * len(r.gcds) for r in known]
    judged = [t for t in stage.trials if t.value is not None and t.state != "failed" and t.feasible]
    best = sorted(judged, key=lambda t: (t.value, t.number))[: stage.planned_members]
    own, done = _spent(stage.results), Counter[int]()
    for r in stage.results:
        done[r.number] = max(done[r.number], r.to_epoch if r.kind == "trial" else 0)
    for trial in best if not known else ():
        if epochs := done[trial.number]:
            costs.append(own[trial.number] / epochs * max(stage.member_epochs - epochs, 0))
    return sum(costs) / len(costs) * stage.planned_members if costs else None


def _spent(results: Iterable[SegmentResult], since: float = 0.0) -> Counter[int]:
    """GCD-seconds of each trial."""
    spent = Counter[int]()
    for r in results:
        if r.kind == "trial" and r.started >= since:
            spent[r.number] += r.seconds * len(r.gcds)  # type: ignore[assignment]
    return spent
