"""How much each member counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import LinearConstraint, minimize

from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.training.losses import Term

# Least weight of a member, as a fraction of an equal weight. The error bars are made of the
# disagreement of the members, so none may be silenced.
SMALLEST_FRACTION = 0.25


def residual_products(
    residuals: Mapping[str, Floats], terms: Sequence[Term], atoms: Floats
) -> Floats:
    """Mean products of the members' residuals on validation data, ``[n_members, n_members]``.

    On the diagonal is each member's loss with squared residuals, whatever loss it was trained with.

    Parameters
    ----------
    residuals
        Prediction minus reference on validation data, target -> ``[n_members, n, d]``.
    terms
        Targets, scales and weights of the training loss.
    atoms
        Number of atoms of each graph, ``[n_graphs, 1]``.
    """
    n_members = len(next(iter(residuals.values())))
    products = np.zeros((n_members, n_members))
    for term in terms:
        scaled = residuals[term.target] / np.asarray(term.scale)
        if term.per_atom:
            scaled = scaled / atoms
        flat = scaled.reshape(n_members, -1)
        flat = flat[:, np.isfinite(flat).all(axis=0)]  # no stress where a cell is not periodic
        if not flat.shape[1]:
            continue
        products += term.weight * flat @ flat.T / flat.shape[1]
    return products


def stacking_weights(products: Floats) -> Floats:
    """Convex weights with which the members' mean fits the validation data best.

    Stacked regression (Breiman, Mach. Learn. 24, 49 (1996)) with the squared residuals of the
    training loss. Equal weights and, almost, the best member alone are among the candidates.

    Parameters
    ----------
    products
        See :func:`residual_products`.

    Returns
    -------
    float64 array
        ``[n_members]``, adding up to one.
    """
    n_members = len(products)
    products = products / (np.trace(products) / n_members)
    equal = np.full(n_members, 1 / n_members)

    def loss(weights: Floats) -> float:
        return float(weights @ products @ weights)

    fit = minimize(
        loss,
        equal,
        method="SLSQP",
        bounds=[(SMALLEST_FRACTION / n_members, 1.0)] * n_members,
        constraints=LinearConstraint(np.ones((1, n_members)), 1, 1),
    )
    return np.asarray(fit.x / fit.x.sum()) if fit.success else equal
