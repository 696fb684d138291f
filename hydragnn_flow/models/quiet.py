"""Linear layers that begin with smaller weights than others."""

from __future__ import annotations

from torch import nn


class QuietLinear(nn.Linear):
    """Linear layer whose initial output is small compared with what it is added to.

    Parameters
    ----------
    inputs, outputs
        Numbers of input and output features.
    gain
        Factor of the initial weights, which :func:`~hydragnn_flow.models.build_model` draws.
    """

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain
