"""Extrapolation of a validation curve to the end of the training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp, stdtr

# Shapes of decay, as finely as a curve without scatter can distinguish them. The logarithm is the
# limit of slow power laws. Times of exponential decay are in units of the observed epochs; the
# longest is nearly a straight line.
_POWERS = np.linspace(0.2, 3.0, 15)[:, None]
_TIMES = np.geomspace(0.1, 20.0, 18)[:, None]
_DOUBT = 0.25
"""Standard deviation of the predicted further fall, as a fraction of it, on top of the posterior's:
no curve follows a shape for ever. Without it exponential curves are often stopped early."""
_FEWEST = 5
"""Least number of epochs: for level, height and shape, and two more to estimate the scatter."""


def has_stalled(curve: Sequence[Sequence[float]], epochs: int) -> bool:
    """Early-stopping criterion: True if the smallest value has not fallen for some epochs.

    Parameters
    ----------
    curve
        Validation curve ``[(epoch, value), ...]``.
    epochs
        Number of epochs that may pass without a fall.
    """
    if not curve:
        return False
    best, since = np.inf, curve[0][0]
    for epoch, value in curve:
        if value < best:
            best, since = value, epoch
    return curve[-1][0] - since >= epochs


def chance_to_beat(curve: Sequence[Sequence[float]], num_epoch: int, target: float) -> float:
    """Probability that a validation curve falls below a target by the end of the training.

    The curve is level + height * shape(epoch) with independent Gaussian scatter. There are some
    thirty shapes: power laws, their limit the logarithm, and exponentials. For each of them level
    and height have a Student posterior; the shapes are weighted by their evidence. This is the rule
    of Domhan et al. (IJCAI 2015, pages 3460-3468) with the two families that describe learning
    curves best (Viering and Loog, arXiv:2103.10948), in closed form instead of by Monte Carlo
    sampling (Gelman et al., Bayesian Data Analysis, 3rd edition, section 14.2). A trial is judged
    by its smallest value, so the prediction is lowered by the expected smallest scatter of the m
    epochs to come, at most sqrt(2 ln m) standard deviations (Boucheron et al., Concentration
    Inequalities, theorem 2.5).

    A sudden fall, as after a drop of the learning rate, is not predicted.

    Parameters
    ----------
    curve
        Validation curve ``[(epoch, value), ...]`` so far.
    num_epoch
        Last epoch of the training.
    target
        Value to fall below.

    Returns
    -------
    float
        Probability, 0 to 1; 1 if the value was below the target, or the curve is too short.
    """
    points = np.array([(epoch, value) for epoch, value in curve if np.isfinite(value)])
    if len(points) < _FEWEST or points[:, 1].min() < target or points[-1, 0] >= num_epoch:
        return 1.0
    epochs, losses = points.T
    shapes = _shapes(np.append(epochs, num_epoch) - epochs[0] + 1)
    shapes, ahead = shapes[:, :-1], shapes[:, -1]

    # Least squares of all shapes at once.
    n, mean_loss, mean_shape = len(losses), losses.mean(), shapes.mean(axis=1)
    off = shapes - mean_shape[:, None]
    spread = (off**2).sum(axis=1)
    height = off @ (losses - mean_loss) / spread
    residuals = losses - mean_loss - height[:, None] * off
    squares = np.maximum(
        (residuals**2).sum(axis=1), 1e-12 * (losses**2).sum() + np.finfo(float).tiny
    )
    evidence = -0.5 * np.log(spread) - 0.5 * (n - 2) * np.log(squares)

    scatter = squares / (n - 2)
    smallest = np.sqrt(2 * np.log(num_epoch - epochs[-1]) * scatter)
    predicted = mean_loss + height * (ahead - mean_shape) - smallest
    variance = (
        scatter * (1 / n + (ahead - mean_shape) ** 2 / spread) + (_DOUBT * height * ahead) ** 2
    )
    chances = stdtr(n - 2, (target - predicted) / np.sqrt(variance))
    return float(np.exp(evidence - logsumexp(evidence)) @ chances)


def _shapes(epochs: np.ndarray) -> np.ndarray:
    """Shapes at the epochs, scaled to 1 at the first and 0 at the last observed, the last but one.

    Level and height are then measured losses, and a flat prior of them means the same for every
    shape.
    """
    seen = epochs[-2]
    shapes = np.vstack([-np.log(epochs), epochs**-_POWERS, np.exp(-epochs / (_TIMES * seen))])
    last = shapes[:, -2:-1]
    scaled: np.ndarray = (shapes - last) / (shapes[:, :1] - last)
    return scaled
