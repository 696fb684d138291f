"""Utilisation in words: where the GCDs' time went, and what to change."""

from __future__ import annotations

from hydragnn_flow.report.gcd_time import HELD, Cause, GcdTime
from hydragnn_flow.report.text import percent

MEANINGS: dict[Cause, str] = {
    "busy": "busy: computing, as predicted",
    "at work": "at work: how busy is not on record",
    "launches": "at work, waiting for launches",
    "start-up": "starting up, or collecting an end",
    "gang": "idle: a segment of several GCDs waits",
    "ready": "idle: work is ready, not sent",
    "no work": "idle: no work is ready",
    "tail": "idle: the tail, nothing more comes",
    "unknown": "idle: cause not on record",
    "queue": "not there yet: work waits for nodes",
    "away": "nodes without work: given back or idle",
}
"""Each cause as tables and figures name it."""
_CHANGES: dict[Cause, str] = {
    "launches": "larger batches, or more segments on a GCD (`most_segments` of the site), use it",
    "start-up": "longer segments (a larger `search.min_epochs`, fewer rungs) begin less often",
    "gang": "fewer GCDs for each trial (`Resources.gcds`) are found sooner",
    "ready": "trials that need less memory fit beside others; driver.log says what was sent when",
    "no work": "more trials (`search.trials`), fewer rungs, or fewer nodes keep GCDs at work",
    "tail": "more trials in flight, or fewer nodes, shorten it",
    "queue": "smaller blocks, and more of them, start sooner",
    "away": "more trials, or fewer nodes, leave fewer without work if they were not given back",
}
# Below this fraction there is nothing to gain.
_WORTH_CHANGING = 0.05


def advice(spent: GcdTime) -> str:
    """What to change first, in a sentence.

    Parameters
    ----------
    spent
        Of a run.
    """
    lost = {cause: spent.seconds[cause] for cause in _CHANGES if cause in spent.seconds}
    cause = max(lost, key=lost.__getitem__, default=None)
    if cause is None or lost[cause] < _WORTH_CHANGING * spent.held:
        return "No cause took more than a twentieth of the time: there is nothing to change."
    name = MEANINGS[cause]
    if cause not in HELD:
        hours = spent.seconds[cause] / 3600
        return f"{hours:.3g} GCD-hours: {name}. To change it: {_CHANGES[cause]}."
    return f"{percent(spent.share(cause))} {name}. To change it: {_CHANGES[cause]}."


def utilisation_sentence(spent: GcdTime) -> str:
    """Utilisation so far in a line."""
    idle: tuple[Cause, ...] = ("gang", "ready", "no work", "tail", "unknown")
    worst = max(idle, key=lambda cause: spent.seconds.get(cause, 0.0))
    words = [f"{percent(spent.share('busy', 'at work', 'launches'))} at work"]
    if "at work" not in spent.seconds:
        words[0] += f" ({percent(spent.share('busy'))} busy)"
    words.append(f"{percent(spent.share('start-up'))} starting up")
    words.append(f"{percent(spent.share(*idle))} idle")
    if spent.share(*idle) >= _WORTH_CHANGING:
        words[-1] += f", most of it {MEANINGS[worst].removeprefix('idle: ')}"
    return f"time of the GCDs so far: {'; '.join(words)}"
