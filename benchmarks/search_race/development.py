"""Functions that samplers are developed on: six were made up, two are tables of real trainings.

Whoever changes a sampler may look at these; what a change is worth is judged on the functions of
`search_race.held_out`. Their characters differ, so that no engine is at home everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hydragnn_flow.config import Parameter
from search_race.function import Function, Params
from search_race.recorded.grids import DIABETES, MOLECULE

# Of the six types: what the best network of the type loses to the best of all, the logarithm of
# its best learning rate and of its best width.
_TYPES = {
    "PNA": (0.0, math.log(8e-4), math.log(700)),
    "CGCNN": (0.12, math.log(2e-3), math.log(200)),
    "SchNet": (0.03, math.log(1e-3), math.log(300)),
    "DimeNet": (0.05, math.log(2e-4), math.log(150)),
    "EGNN": (0.02, math.log(5e-4), math.log(1200)),
    "GIN": (0.2, math.log(1e-3), math.log(1000)),
}
_NETWORK = {
    "Architecture.mpnn_type": Parameter(choices=tuple(_TYPES)),
    "Architecture.num_conv_layers": Parameter(int=(2, 6)),
    "Architecture.hidden_dim": Parameter(int=(100, 3000), log=True),
    "Architecture.num_headlayers": Parameter(int=(2, 4)),
    "Architecture.dim_headlayers": Parameter(int=(300, 2000)),
    "Training.learning_rate": Parameter(float=(1e-5, 1e-2), log=True),
    "Training.batch_size": Parameter(int=(16, 256), log=True),
}


def _hydra(params: Params) -> float:
    """Training of a network, much simplified: a valley whose bottom moves with type and batch."""
    loss, rate, width = _TYPES[params["Architecture.mpnn_type"]]
    batch = math.log(params["Training.batch_size"] / 64)
    # A larger batch wants a larger step, a wider network a smaller one.
    wide = math.log(params["Architecture.hidden_dim"]) - width
    step = math.log(params["Training.learning_rate"]) - rate - 0.5 * batch + 0.3 * wide
    # Steps far too large diverge: steeper on one side.
    loss += 0.05 * step**2 * (2.5 if step > 0 else 1.0) / (1 + 0.1 * abs(step))
    loss += 0.08 * wide**2 + 0.03 * batch**2
    deep: int = params["Architecture.num_conv_layers"]
    # Deep and wide networks smooth over.
    loss += 0.03 * abs(deep - 4) + 0.02 * max(deep - 4, 0) * max(wide, 0)
    head_layers: int = params["Architecture.num_headlayers"]
    loss += 0.02 * abs(head_layers - 3)
    return loss + 0.05 * math.log(params["Architecture.dim_headlayers"] / 900) ** 2


_FLOATS = tuple(f"float.{i}" for i in range(4))
_INTS = tuple(f"int.{i}" for i in range(3))
_CHOICES = tuple(f"choice.{i}" for i in range(2))


def _ackley(params: Params) -> float:
    """Ackley's function of ten coordinates; the categories are coordinates in no order.

    The best is off the centre, where an engine that prefers middles would find it by chance.
    """
    floats = [params[name] - 3.2 for name in _FLOATS]
    ints = [0.5 * (params[name] - 4) for name in _INTS]
    distance = {"d": 0.0, "a": 2.0, "e": -2.5, "c": 4.0, "b": -4.5}
    x = np.array([*floats, *ints, *(distance[params[name]] for name in _CHOICES)])
    root = math.sqrt(np.mean(x**2))
    waves = float(np.mean(np.cos(2 * math.pi * x)))
    return 20 - 20 * math.exp(-0.2 * root) + math.e - math.exp(waves)


def _rows(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(count))


_BRANCHES = {"sphere": 3, "valley": 2, "ripples": 3, "plateau": 4}


def _branches(params: Params) -> float:
    """Four types with parameters of their own and a shared one; the best type is the narrow one.

    Three are easy to do middling well in, so that an engine must not choose a type early.
    """
    kind = params["kind"]
    shared = (
        0.3
        * (params["shared"] - {"sphere": 0.2, "valley": 0.8, "ripples": 0.5, "plateau": 0.4}[kind])
        ** 2
    )
    x = np.array([params[name] for name in _rows(kind, _BRANCHES[kind])])
    if kind == "sphere":
        loss = 0.25 + 0.5 * np.mean((x - 0.35) ** 2)
    elif kind == "valley":
        loss = 1.2 * abs(x[1] - (x[0] - 0.5) ** 2 - 0.2) ** 0.7 + 0.8 * (x[0] - 0.85) ** 2
    elif kind == "ripples":
        loss = 0.12 + np.mean((x - 0.7) ** 2) + 0.05 * np.mean(1 - np.cos(12 * math.pi * (x - 0.7)))
    else:
        loss = 0.2 + 0.2 * np.mean(np.floor(np.abs(x - 0.55) * 8))
    return float(loss + shared)


_ARCHITECTURES: dict[str, dict[str, Parameter]] = {
    "SchNet": {
        "num_gaussians": Parameter(int=(10, 200), log=True),
        "num_filters": Parameter(int=(16, 512), log=True),
    },
    "DimeNet": {
        "num_radial": Parameter(int=(3, 16)),
        "num_spherical": Parameter(int=(2, 10)),
        "envelope_exponent": Parameter(int=(2, 8)),
        "basis_emb_size": Parameter(int=(4, 64), log=True),
    },
    "MACE": {
        "max_ell": Parameter(int=(1, 3)),
        "node_max_ell": Parameter(int=(1, 3)),
        "correlation": Parameter(int=(1, 4)),
        "radial_type": Parameter(choices=("bessel", "gaussian", "chebyshev")),
    },
    "GAT": {
        "heads": Parameter(int=(1, 12)),
        "negative_slope": Parameter(float=(0.01, 0.5), log=True),
    },
    "PNA": {},
    "EGNN": {"equivariance": Parameter(choices=(False, True))},
}


def _off(value: float, best: float) -> float:
    """Squared distance on a logarithmic scale."""
    return math.log(value / best) ** 2


def _types(params: Params) -> float:
    """Six types of network with their published parameters, half of them integers and choices."""
    kind = params["mpnn_type"]
    own = {name: params[f"{kind}.{name}"] for name in _ARCHITECTURES[kind]}
    loss: float
    if kind == "SchNet":
        loss = 0.1 + 0.03 * _off(own["num_gaussians"], 50) + 0.02 * _off(own["num_filters"], 128)
    elif kind == "DimeNet":
        loss = 0.06 + 0.01 * abs(own["num_radial"] - 8) + 0.015 * abs(own["num_spherical"] - 6)
        loss += 0.02 * abs(own["envelope_exponent"] - 5) + 0.02 * _off(own["basis_emb_size"], 12)
    elif kind == "MACE":
        # Good only with the whole of it right: a higher correlation needs the higher degrees.
        loss = 0.08 * (3 - own["max_ell"]) + 0.06 * abs(own["node_max_ell"] - 2)
        loss += 0.1 * abs(own["correlation"] - own["max_ell"])
        loss += {"bessel": 0.0, "gaussian": 0.05, "chebyshev": 0.08}[own["radial_type"]]
    elif kind == "GAT":
        loss = 0.15 + 0.015 * abs(own["heads"] - 6) + 0.02 * _off(own["negative_slope"], 0.05)
    elif kind == "EGNN":
        loss = 0.09 + (0.0 if own["equivariance"] else 0.1)
    else:
        loss = 0.14
    rate = {"SchNet": 1e-3, "DimeNet": 3e-4, "MACE": 5e-3, "GAT": 2e-3, "PNA": 1e-3, "EGNN": 5e-4}
    step = math.log(params["learning_rate"] / rate[kind])
    loss += 0.06 * (1 - math.exp(-0.4 * step**2)) + 0.01 * step**2
    layers: int = params["num_conv_layers"]
    loss += 0.02 * abs(layers - (2 if kind == "MACE" else 4))
    return loss + 0.015 * _off(params["hidden_dim"], 128 if kind in ("MACE", "DimeNet") else 400)


def _when(kind: str, name: str, domain: Parameter) -> Parameter:
    return domain.model_copy(update={"when": {name: (kind,)}})


_STEPS = tuple(f"step.{i}" for i in range(6))
_PLACES = tuple(f"place.{i}" for i in range(6))
# Losses of a place by its own letter and its two neighbours', as in Kauffman's NK landscapes with
# K = 2; drawn once.
_NK = np.random.default_rng(20).random((len(_PLACES), 3, 3, 3))


def _nk(letters: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Mean loss of the places, of letters ``[..., n_places]``."""
    n = len(_PLACES)
    left, right = np.roll(letters, 1, axis=-1), np.roll(letters, -1, axis=-1)
    return np.mean([_NK[i, letters[..., i], left[..., i], right[..., i]] for i in range(n)], axis=0)


_NK_BEST = float(_nk(np.stack(np.meshgrid(*[np.arange(3)] * len(_PLACES)), -1)).min())


def _rugged(params: Params) -> float:
    """Rastrigin's function on a lattice, and letters whose gain depends on their neighbours."""
    x = np.array([(params[name] - 27) / 8 for name in _STEPS])
    rastrigin = float(np.mean(x**2 + 2 * (1 - np.cos(2 * math.pi * x))))
    letters = np.array(["abc".index(params[name]) for name in _PLACES])
    return 0.1 * rastrigin + float(_nk(letters)) - _NK_BEST


_SCALED = tuple(f"scale.{i}" for i in range(5))


def _scaled(params: Params) -> float:
    """Rosenbrock's banana in the logarithms of parameters, turned and moved by two switches."""
    # Each parameter runs over six decades; z over -2 ... 2.
    z = np.log10([params[name] for name in _SCALED]) * (2 / 3)
    if params["order"] == "reversed":
        z = z[::-1]
    z = z + {"left": 0.4, "middle": 0.0, "right": -0.6}[params["side"]]
    banana = np.sum(20 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2)
    worse = {"left": 0.0, "middle": 0.05, "right": 0.1}[params["side"]]
    return math.log1p(float(banana)) + worse + (0.1 if params["order"] == "reversed" else 0.0)


DEVELOPMENT = {
    function.name: function
    for function in (
        Function("hydra", "network, noisy", _NETWORK, _hydra, best=0.0, noise=0.02),
        Function(
            "ackley",
            "mixed, many valleys",
            {name: Parameter(float=(-5, 5)) for name in _FLOATS}
            | {name: Parameter(int=(-10, 10)) for name in _INTS}
            | {name: Parameter(choices=tuple("abcde")) for name in _CHOICES},
            _ackley,
            best=0.0,
        ),
        Function(
            "branches",
            "conditional, deceptive",
            {"kind": Parameter(choices=tuple(_BRANCHES)), "shared": Parameter(float=(0, 1))}
            | {
                name: _when(kind, "kind", Parameter(float=(0, 1)))
                for kind, count in _BRANCHES.items()
                for name in _rows(kind, count)
            },
            _branches,
            best=0.0,
        ),
        Function(
            "types",
            "conditional, mostly integers, noisy",
            {
                "mpnn_type": Parameter(choices=tuple(_ARCHITECTURES)),
                "learning_rate": Parameter(float=(1e-5, 1e-1), log=True),
                "num_conv_layers": Parameter(int=(1, 8)),
                "hidden_dim": Parameter(int=(16, 2048), log=True),
            }
            | {
                f"{kind}.{name}": _when(kind, "mpnn_type", domain)
                for kind, own in _ARCHITECTURES.items()
                for name, domain in own.items()
            },
            _types,
            best=0.0,
            noise=0.01,
        ),
        Function(
            "rugged",
            "lattice and letters",
            {name: Parameter(int=(0, 40)) for name in _STEPS}
            | {name: Parameter(choices=tuple("abc")) for name in _PLACES},
            _rugged,
            best=0.0,
        ),
        Function(
            "scaled",
            "logarithmic, ill-conditioned",
            {name: Parameter(float=(1e-3, 1e3), log=True) for name in _SCALED}
            | {
                "order": Parameter(choices=("reversed", "straight")),
                "side": Parameter(choices=("right", "middle", "left")),
            },
            _scaled,
            best=0.0,
        ),
        Function(
            "diabetes",
            "real: four regressors",
            DIABETES.space,
            DIABETES.loss,
            best=DIABETES.best,
        ),
        Function(
            "molecule",
            "real: five regressors, losses over two decades",
            MOLECULE.space,
            MOLECULE.loss,
            best=MOLECULE.best,
        ),
    )
}
