"""What networks took in a calibration is what the next plan and campaign begin with."""

from dataclasses import astuple, replace

import pytest
from phase_cases import SITE

from hydragnn_flow.campaign.estimates.calibration import learn
from hydragnn_flow.campaign.estimates.cost_files import CostFiles
from hydragnn_flow.placement import CostModel, Taken, Work

WORKS = [Work(1e7 * 8**n, 2e7 * 4**n, 3000, 1e6, 1e5) for n in range(4)]
STEPS = 1000


def expected(kind, work):
    model = CostModel(SITE.node.gcd, len(SITE.node.gcds))
    for earlier in CostFiles(SITE).read():
        model.recall(earlier)
    return model.estimate(kind, work, 10_000).seconds / 10_000


def measured(kind, slower):
    """As a machine answers that is slower than guessed."""
    found = []
    for hidden, work in enumerate(WORKS):
        step = slower * expected(kind, work)
        taken = Taken(work, STEPS, step, (STEPS + 2) * step, 3, 0.2)
        values = {**vars(taken), "work": list(astuple(work))}
        found.append({"kind": kind, "hidden": hidden, "taken": values})
    return found


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_a_site_is_known_after_its_calibration(slower):
    networks = measured("PNA", slower)
    found = learn(SITE, networks)
    for one in found:
        assert one.measured == pytest.approx(slower * one.before)
        assert one.after == pytest.approx(one.measured, rel=0.1)
    assert [expected("PNA", work) for work in WORKS] == pytest.approx([one.after for one in found])
    other = expected("EGNN", replace(WORKS[1], flops=2e7))
    CostFiles(SITE).write(CostModel(SITE.node.gcd).experience())
    assert other == expected("EGNN", replace(WORKS[1], flops=2e7)), "campaigns add to it"


def test_calibrations_add_up():
    learn(SITE, measured("PNA", 2.0))
    learn(SITE, measured("EGNN", 2.0))
    (kept,) = CostFiles(SITE).read()
    assert {kind: len(several) for kind, several in kept.segments.items()} == {"PNA": 4, "EGNN": 4}
