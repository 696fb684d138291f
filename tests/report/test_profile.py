"""What a profile says of a step, in tables and in a sentence."""

from io import StringIO

import pytest
from rich.console import Console
from scaling_cases import profile

from hydragnn_flow.report.scaling import answer, profile_tables, shares
from hydragnn_flow.training.profile_result import Parts


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


def test_the_table_shows_parts_and_what_they_add_up_to():
    text = StringIO()
    Console(file=text, width=120).print(profile_tables(profile(), nodes=2))
    for words in (
        *("waiting for data", "computing", "exchanging gradients", "waiting for other ranks"),
        "98.0 % of these steps as a whole",
        "100 steps of 16.0 graphs, 480 atoms, 14,400 edges over 2 x cpu on 2 nodes: 160 graphs/s",
        "peak memory 0.500 GiB",
        "energy: nothing here counts it",
        "50 % of the step computes",
    ):
        assert words in text.getvalue()
