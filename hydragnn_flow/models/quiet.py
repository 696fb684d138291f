"""Linear layers that begin with smaller weights than others."""

from __future__ import annotations

from torch import nn


class QuietLinear(nn.Linear):
    """A linear layer whose result is small at first beside what it is added to.

    Parameters
    ----------
    inputs, outputs
        Numbers of features.
    gain
        What the drawn weights are multiplied by; :func:`~hydragnn_flow.models.build.build_model`
        draws them.
    """

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain
