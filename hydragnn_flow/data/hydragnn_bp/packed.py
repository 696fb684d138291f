"""Targets in HydraGNN's `y`, which has all outputs of a graph one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.network import VariablesOfInterest
from hydragnn_flow.config.sources import TRAIN, Level
from hydragnn_flow.data.sources.arrays import Arrays, named, named_rows
from hydragnn_flow.data.store.manifest import Part
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.graph_store import GraphStore

_OR_KEYS = "or name keys of the graphs in data.source.targets"


def levels_of(outputs: VariablesOfInterest | None) -> dict[str, Level]:
    """Return the level, ``graph`` or ``node``, of each output of a network, by output name.

    The result is empty if ``outputs`` is None.
    """
    if outputs is None:
        return {}
    return dict(zip(outputs.output_names, outputs.type, strict=True))


def unpack_outputs(
    arrays: Arrays, outputs: VariablesOfInterest, n: int, origin: str
) -> dict[str, NDArray[np.float64]]:
    """Cut the values of each output out of a graph's ``y`` as HydraGNN does, by output name.

    HydraGNN packs all outputs of a graph into the array ``y``. Outputs of the graph are [d],
    outputs of its ``n`` nodes [n, d]. ``y_loc`` divides ``y`` into the outputs in their order;
    further pieces are ignored. Without ``y_loc`` an output is the graph feature in ``y``, or the
    node feature in ``x``, with the index in `output_index`; `graph_feature_dims` and
    `node_feature_dims` give the widths of the features. Without these settings, outputs of graphs
    follow one another in ``y``, with the widths in `output_dim`.

    Raises
    ------
    InputError
        If ``y`` does not hold such outputs; the message begins with ``origin``.
    """
    y = named(arrays, "y", origin).reshape(-1)
    pieces: list[NDArray[np.float64]]
    if "y_loc" in arrays:
        pieces = _divided(y, named(arrays, "y_loc", origin).reshape(-1).astype(np.int64), origin)
        _check_number(len(pieces), outputs.output_names, origin)
    elif outputs.output_index is not None and (
        outputs.graph_feature_dims is not None or outputs.node_feature_dims is not None
    ):
        pieces = _features(arrays, y, outputs, n, origin)
    else:
        pieces = _one_after_the_other(y, outputs, origin)
    found = {}
    for (name, level), piece in zip(levels_of(outputs).items(), pieces, strict=False):
        _width(name, level, len(piece), n, origin)
        found[name] = piece.reshape(n, -1) if level == "node" else piece
    return found


def places_in_y(
    store: GraphStore, levels: Mapping[str, Level], wanted: Collection[str]
) -> dict[str, Part]:
    """Return the position of each wanted output in the packed ``y`` of every graph, by name.

    One rule gives the position in all graphs. It comes from ``y_loc``; ``y`` itself is not read.

    Parameters
    ----------
    store
        Store or file whose graphs have ``y`` and ``y_loc``.
    levels
        Level of each output, in their order in ``y``.
    wanted
        Names of the outputs to return.

    Raises
    ------
    InputError
        If ``y`` or ``y_loc`` is missing, or ``y_loc`` does not fit ``levels`` or divides ``y`` of
        some graph in another way than in the first graph.
    """
    if missing := {"y", "y_loc"} - store.manifest.keys.keys():
        raise InputError(
            f"{store.path}: its graphs have no {min(missing)} to find {min(wanted)} in; name keys "
            "of the file in data.source.targets, or leave in_place out to have it copied"
        )
    first = store[TRAIN][0]
    n, sizes = len(first.pos), np.diff(first.y_loc.reshape(-1).numpy()).tolist()
    _check_number(len(sizes), levels, str(store.path))
    parts, after, after_each = {}, 0, 0
    for (name, level), size in zip(levels.items(), sizes, strict=False):
        width = _width(name, level, size, n, str(store.path))
        node = level == "node"
        parts[name] = Part(after=after, after_each=after_each, width=width, node=node)
        after, after_each = after + width * (not node), after_each + width * node
    for split in store.splits:
        atoms = store[split].n_atoms
        bounds = store[split].column("y_loc").reshape(len(atoms), -1)
        begins = [[part.after, part.after_each] for part in parts.values()]
        found = np.array([*begins, [after, after_each]])
        expected = found[:, 0] + found[:, 1] * atoms[:, None]
        wrong = (bounds[:, : len(expected[0])] != expected).any(axis=1)
        wrong |= bounds[:, -1] != store[split].counts("y")
        if wrong.any():
            graph = int(wrong.argmax())
            raise InputError(
                f"{store.path}: {split}: graph {graph}: y_loc is {bounds[graph].tolist()}, which "
                f"divides y in another way than in the first graph; correct the file, or leave "
                f"in_place out"
            )
    return {name: part for name, part in parts.items() if name in wanted}


def _check_number(pieces: int, names: Collection[str], origin: str) -> None:
    if pieces < len(names):
        raise InputError(
            f"{origin}: y_loc divides y into {pieces}, but the network's "
            f"Variables_of_interest.output_names are {', '.join(names)}; name as many, in the "
            f"order of y, {_OR_KEYS}"
        )


def _width(name: str, level: Level, size: int, n: int, origin: str) -> int:
    """Return the number of components of an output with ``size`` values in a graph of ``n`` nodes.

    ``name`` is the name of the output; ``origin`` begins the error message.
    """
    width, rest = divmod(size, n if level == "node" else 1)
    if not width or rest:
        raise InputError(
            f"{origin}: y holds {size} numbers for {name!r}, which are no values of {n} nodes; "
            f"correct the order of Variables_of_interest.output_names or type, {_OR_KEYS}"
        )
    return width


def _divided(
    y: NDArray[np.float64], bounds: NDArray[np.int64], origin: str
) -> list[NDArray[np.float64]]:
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(y) or (np.diff(bounds) < 0).any():
        raise InputError(
            f"{origin}: y_loc is {bounds.tolist()}, which does not divide the {len(y)} numbers of "
            f"y; correct the file"
        )
    return list(np.split(y, bounds[1:-1]))


def _features(
    arrays: Arrays, y: NDArray[np.float64], outputs: VariablesOfInterest, n: int, origin: str
) -> list[NDArray[np.float64]]:
    """Return the features with indices `output_index`: of graphs from ``y``, of nodes from ``x``.

    ``n`` is the number of nodes; ``origin`` begins error messages.
    """
    assert outputs.output_index is not None
    dims = {"graph": outputs.graph_feature_dims or (), "node": outputs.node_feature_dims or ()}
    of_nodes = named_rows(arrays, "x", n, origin)
    table = {"graph": y[None], "node": of_nodes}
    pieces = []
    for index, level in zip(outputs.output_index, outputs.type, strict=True):
        start = sum(dims[level][:index])
        stop = sum(dims[level][: index + 1])
        if index >= len(dims[level]) or stop > table[level].shape[1]:
            where = "y" if level == "graph" else "x"
            raise InputError(
                f"{origin}: Variables_of_interest.output_index asks for {level} feature {index}, "
                f"but {level}_feature_dims = {list(dims[level])} and the {table[level].shape[1]} "
                f"columns of {where} do not have it; correct one of them"
            )
        pieces.append(table[level][:, start:stop].reshape(-1))
    return pieces


def _one_after_the_other(
    y: NDArray[np.float64], outputs: VariablesOfInterest, origin: str
) -> list[NDArray[np.float64]]:
    """Return graph outputs that follow one another in ``y``, with the widths in `output_dim`.

    A single output is all of ``y``. ``origin`` begins error messages.
    """
    if "node" in outputs.type:
        raise InputError(
            f"{origin} has no y_loc to say where in y its outputs are; give "
            f"Variables_of_interest.output_index, graph_feature_dims and node_feature_dims, "
            f"{_OR_KEYS}"
        )
    if len(outputs.type) == 1:
        return [y]
    widths = outputs.output_dim or ()
    if sum(widths) != len(y) or len(widths) != len(outputs.type):
        raise InputError(
            f"{origin} has {len(y)} numbers in y and no y_loc to divide them, but "
            f"Variables_of_interest.output_dim is {list(widths)}; correct it, {_OR_KEYS}"
        )
    return list(np.split(y, np.cumsum(widths)[:-1]))
