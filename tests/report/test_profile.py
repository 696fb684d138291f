"""What a profile says of a step, in tables and in a sentence."""

from io import StringIO

import pytest
from rich.console import Console
from scaling_cases import profile

from hydragnn_flow.report.profile import answer, profile_tables, roofline, shares
from hydragnn_flow.training.profiles.profile_result import (
    ALONE,
    CACHED,
    LOADER,
    MARKED,
    REAL,
    Parts,
)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (Parts(0.62, 0.2, 0.1, 0.08), "62 % of the step waits for data: "),
        (Parts(0.1, 0.62, 0.2, 0.08), "62 % of the step computes: nothing to gain from I/O"),
        (
            Parts(0.1, 0.2, 0.62, 0.08),
            "62 % of the step waits for gradients: larger buckets (Training.ddp.bucket_cap_mb) or",
        ),
        (Parts(0.1, 0.2, 0.08, 0.62), "62 % of the step waits for other ranks: batches of more"),
        (Parts(0.0, 0.1), "100 % of the step computes: "),
    ],
)
def test_the_answer_is_about_the_largest_share(parts, said):
    found = profile(parts=parts)
    assert answer(found).startswith(said)
    assert sum(shares(parts).values()) == pytest.approx(1.0)


def test_the_roofline_says_what_limits_a_step():
    found = profile(parts=Parts(0.0, 0.08, 0.02, 0.0))
    # 0.1 FLOP on a byte at 10 GB/s; each of two GCDs does half of 16 MFLOP in 80 ms.
    assert roofline(found) == (
        "roofline: 0.1 FLOP on a byte; a GCD does 50 GFLOP/s or moves 10 GB/s, so bytes limit this "
        "step to 1 GFLOP/s; achieved 0.1 GFLOP/s and 1 GB/s, 10 %"
    )


def test_the_tables_show_modes_parts_and_what_they_add_up_to():
    text = StringIO()
    Console(file=text, width=120).print(profile_tables(profile(), nodes=2))
    for words in (
        *(REAL, MARKED, CACHED, ALONE, LOADER),
        *("waiting for data", "computing", "exchanging gradients", "waiting for other ranks"),
        "98.0 % of these steps as a whole",
        "timing the parts changes the processor's time of a step by +2.0 %",
        "over 2 x cpu on 2 nodes",
        "peak memory 0.500 GiB",
        "energy: nothing here counts it",
        "other ranks make a step 30.00 ms longer",
        "50 % of the step computes",
    ):
        assert words in text.getvalue()
