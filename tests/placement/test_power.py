"""What a machine draws, from segments that were counted."""

from dataclasses import replace

import pytest

from hydragnn_flow.placement import CostModel, Experience, Gcd, Power, Taken, Work, measured_power

GCD = Gcd(8, 1e10, 1e10, 1e-5, 0.5, 2)
TAKEN = Taken(Work(1e9, 1e9, 100, 1e6, 1e5), 10, 3.0, 40.0, 2, 0.4, joules=8_000.0)


def seen(*taken, rest=None):
    return Experience({"PNA": [t for t in taken if not t.is_pack]}, {}, [], 0.5,
                      {"PNA": [t for t in taken if t.is_pack]}, rest)  # fmt: skip


def test_power_is_that_of_a_gcd_whatever_the_width_and_who_shares_it():
    """Longer segments count for more, and those that were not counted not at all."""
    wide = replace(TAKEN, width=4, joules=32_000.0)
    shared = replace(TAKEN, together=2.0, joules=4_000.0)
    for taken in (TAKEN, wide, shared):
        power = measured_power(seen(taken))
        assert power is not None and power.gcd_watts == pytest.approx(200.0)
    longer = replace(TAKEN, seconds=120.0, joules=12_000.0)
    assert measured_power(seen(TAKEN, longer)) == Power(20_000.0 / 160.0, 2)
    for joules in (None, float("nan")):
        assert measured_power(seen(replace(TAKEN, joules=joules), rest=50.0)) is None


def test_nodes_draw_what_their_gcds_and_their_rest_do():
    power = measured_power(seen(TAKEN, rest=70.0))
    assert power is not None and power.rest_watts == 70.0
    assert power.joules(gcd_seconds=10.0, node_seconds=100.0) == 2_000.0 + 7_000.0
    assert Power(200.0, 1).joules(10.0, 100.0) is None


def test_the_rest_of_a_node_is_kept_from_campaign_to_campaign():
    model = CostModel(GCD)
    model.recall(seen(TAKEN, rest=70.0))
    assert model.experience.rest_watts == 70.0
    model.observe_rest(80.0)
    model.recall(seen(rest=70.0))
    assert model.experience.rest_watts == 80.0
    assert seen(rest=80.0).after(seen(rest=70.0)).rest_watts == 80.0
    assert seen().after(seen(rest=70.0)).rest_watts == 70.0
