"""Inputs of an ensemble: structures and stores like those that it was trained on."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from ase import Atoms
from torch import nn
from torch_geometric.data import Batch, Data

from hydragnn_flow.config.sources import BRANCH
from hydragnn_flow.data import GraphStore, Manifest, atoms_to_graph, batch_graphs
from hydragnn_flow.data.graphs import add_encodings
from hydragnn_flow.data.sources.arrays import add_keys, graph_attr
from hydragnn_flow.data.sources.ase_files import said_of
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import (
    ENCODINGS,
    GRAPH_ATTR,
    MANIFEST,
    LabelStatistics,
    symbols,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.embedding import ATOMIC_NUMBER, NodeEmbedding
from hydragnn_flow.models.engine import EngineModel
from hydragnn_flow.training.plan.batching import Budget

BUDGET = Budget(atoms=2048, edges=32_768)
"""Limits of a batch of structures to predict: more was no faster, a quarter was slower."""


@dataclass(frozen=True)
class StructureGraphs:
    """Converter of structures to graphs like those of the training data.

    Parameters
    ----------
    manifest
        Manifest of the store that the members were trained on.
    branch
        Number of the branch (heads of one data set) that predicts the structures; None if there is
        only one.
    of_energies
        True if the members are potentials, which add an energy of each element.
    """

    manifest: Manifest
    branch: int | None = None
    of_energies: bool = False

    @cached_property
    def known(self) -> frozenset[int]:
        """Atomic numbers of the elements that structures to predict may have.

        They are those in training structures of the branch's data set; a potential needs an energy
        of each.
        """
        found: LabelStatistics = self.manifest.statistics
        if self.branch is not None:
            found = self.manifest.statistics.by_branch.get(self.branch, found)
        energies = found.element_energies if self.of_energies else {}
        return frozenset(energies or found.seen or self.manifest.elements)

    @property
    def example(self) -> Atoms:
        """Example of a structure that the members can predict, with two atoms."""
        assert self.manifest.cutoff is not None
        said = dict.fromkeys(graph_inputs(self.manifest), 0.0)
        at = [[0, 0, 0], [0, 0, self.manifest.cutoff / 2]]
        return Atoms([min(self.known)] * 2, at, info=said)

    def graph(self, atoms: Atoms) -> Data:
        """Convert a structure to a graph like those of the training data.

        Raises
        ------
        InputError
            If the structure has an element that the training data do not have, lacks one of
            :attr:`inputs`, or cannot be a graph. The message has no subject: it begins with a verb,
            as in "has no atoms".
        """
        if strange := set(atoms.numbers.tolist()) - self.known:
            told = ", ".join(symbols(strange))
            raise InputError(f"has {told}, which the training data do not have; leave it out")
        cutoff, counted = self.manifest.cutoff, self.manifest.truncation
        assert cutoff is not None  # every store this package writes has one
        # If all lists were whole in training, those of denser structures must be whole too.
        whole = counted is not None and not counted.atoms
        kept = None if whole else self.manifest.max_neighbours
        try:
            graph = atoms_to_graph(atoms, cutoff, kept)
        except InputError as error:
            raise InputError(re.sub(r"^structure 0 ", "", str(error))) from None
        if encodings := self.manifest.provenance.get(ENCODINGS):
            add_encodings(graph, encodings)
        if inputs := graph_inputs(self.manifest):
            try:
                numbers = graph_attr(current(atoms).values, inputs)
            except ValueError as error:
                raise InputError(f"{error}; say it in the file, or in Atoms.info") from None
            add_keys(graph, {"graph_attr": numbers})
        return graph if self.branch is None else with_branch(graph, self.branch, 1)


def with_branch(graphs: Data, branch: int, n: int) -> Data:
    """Set the branch (heads for one data set) that predicts a graph, or a batch of ``n`` graphs.

    The number of the branch is stored in ``graphs``, which is changed in place and returned. For
    one graph, ``n`` is 1.
    """
    graphs[BRANCH] = torch.full((n, 1), branch, dtype=torch.int64)
    return graphs


def graph_inputs(manifest: Manifest) -> list[str]:
    """Return the names of the numbers that each graph of a store has in its key `graph_attr`."""
    names: list[str] = manifest.provenance.get(GRAPH_ATTR, [])
    return names


def check_reads_structures(models: Iterable[nn.Module], trained_on: Manifest) -> None:
    """Raise an error if the members read inputs that ASE structures do not have.

    Parameters
    ----------
    models
        Networks of the members.
    trained_on
        Manifest of the store that the members were trained on.

    Raises
    ------
    InputError
        If a member needs node features or edges that structures do not have.
    """
    models = list(models)
    embeddings = [
        layer for model in models for layer in model.modules() if isinstance(layer, NodeEmbedding)
    ]
    of_engine = any(isinstance(model, EngineModel) for model in models)
    read = ""
    if of_engine and not _are_of_structures(trained_on):
        read = "node features or keys of graphs"
    elif any(layer.element_column != 0 or layer.other_columns for layer in embeddings):
        read = f"node features of {', '.join(trained_on.node_features)}"
    elif trained_on.provenance.get("own_edges"):
        read = (
            f"edges that the training data brought, not neighbours by `radius` "
            f"{trained_on.cutoff:g} and `max_neighbours` {trained_on.max_neighbours}"
        )
    if read:
        raise InputError(
            f"the ensemble reads {read}, which structures do not have; give a GraphStore prepared "
            f"like its training data"
        )


def _are_of_structures(trained_on: Manifest) -> bool:
    """Return True if the graphs of a store have only keys that graphs of structures have too.

    This matters for the networks of an engine (external library that builds a network), since it is
    unknown which keys they read.
    """
    edges = trained_on.keys.get("edge_attr")
    made = {GRAPH_ATTR: GRAPH_ATTR, "pe": ENCODINGS, "rel_pe": ENCODINGS}
    return (
        trained_on.node_features == [ATOMIC_NUMBER]
        and (edges is None or edges.shape == (1,))
        and all(
            said in trained_on.provenance for key, said in made.items() if key in trained_on.keys
        )
    )


def check_structures(structures: object) -> Sequence[Atoms]:
    """Return ASE structures as a sequence; a single structure becomes a list of one.

    Structures of pymatgen, or others that have its `to_ase_atoms`, are converted.

    Raises
    ------
    InputError
        If ``structures`` is anything else than structures, or is empty.
    """
    if isinstance(structures, Atoms) or hasattr(structures, "to_ase_atoms"):
        structures = [structures]
    if isinstance(structures, Collection) and not isinstance(structures, str):
        found = [_converted(one) for one in structures]
        if not found:
            raise InputError("there are no structures; give at least one")
        if all(isinstance(one, Atoms) for one in found):
            return found
    raise InputError(
        f"structures are ase.Atoms or a list of them, not {reprlib.repr(structures)}; read files "
        f"with ase.io.read"
    )


def _converted(structure: Any) -> Any:
    return structure.to_ase_atoms() if hasattr(structure, "to_ase_atoms") else structure


def current(atoms: Atoms) -> Found:
    """Return a structure with all its values (`info`, `arrays`, results) that may be labels.

    Results of its calculator are left out if they belong to another structure, as after a move.
    """
    calculator = atoms.calc
    # ASE takes any that has the methods it calls.
    tells = hasattr(calculator, "check_state") and hasattr(calculator, "results")
    if calculator is None or (tells and not calculator.check_state(atoms)):
        return said_of(atoms)
    alone: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # without calculator
    return said_of(alone)


def graph_batches(graphs: Iterable[Data], budget: Budget) -> Iterator[Batch]:
    """Yield batches of graphs, in order, each with as many graphs as the budget allows.

    The budget limits the graphs, atoms and edges of a batch. ``graphs`` is read lazily. A graph
    that exceeds the budget gets a batch of its own.
    """
    limits = budget.limits
    waiting: list[Data] = []
    filled = dict.fromkeys(limits, 0)
    for graph in graphs:
        sizes = {"graphs": 1, "atoms": len(graph.pos), "edges": graph.edge_index.shape[1]}
        if waiting and any(filled[name] + sizes[name] > most for name, most in limits.items()):
            yield batch_graphs(waiting)
            waiting, filled = [], dict.fromkeys(limits, 0)
        waiting.append(graph)
        filled = {name: size + sizes[name] for name, size in filled.items()}
    if waiting:
        yield batch_graphs(waiting)


def check_store(store: GraphStore, trained_on: Manifest) -> None:
    """Raise an error if the graphs of a store are not like those that the members were trained on.

    ``trained_on`` is the manifest of the training store.

    Raises
    ------
    InputError
        If cutoff, features, elements or units do not match; the message names the difference.
    """
    found = store.manifest
    file = store.path / MANIFEST if (store.path / MANIFEST).exists() else store.path

    def check(what: str, theirs: object, ours: object, remedy: str) -> None:
        if theirs != ours:
            raise InputError(
                f"{file}: {what} is {theirs}, but {ours} in the data the ensemble was trained on; "
                f"{remedy}"
            )

    alike = "prepare the store like those, or give its structures in a file ASE reads"
    for key in ("cutoff", "max_neighbours", "node_features"):
        check(key, getattr(found, key), getattr(trained_on, key), alike)
    theirs, ours = graph_inputs(found), graph_inputs(trained_on)
    if theirs and ours:
        check("its graph_attr", ", ".join(theirs), ", ".join(ours), alike)
    cut, whole = found.truncation, trained_on.truncation
    if cut is not None and cut.atoms and whole is not None and not whole.atoms:
        raise InputError(
            f"{file}: {cut.sentence(found.cutoff or 0.0, found.max_neighbours)}, and nothing in "
            f"the data the ensemble was trained on; give its structures in a file ASE reads"
        )
    if unknown := set(found.elements) - set(trained_on.elements):
        told = ", ".join(symbols(unknown))
        raise InputError(
            f"{file}: elements has {told}, which the training data do not have; make a store "
            f"without these structures"
        )
    for name in found.targets.keys() & trained_on.targets.keys():
        of_store, of_training = found.targets[name], trained_on.targets[name]
        if not of_store.unit or not of_training.unit:
            of_store = of_store.model_copy(update={"unit": of_training.unit})
        if of_store != of_training:
            remedy = "convert the labels, or leave them out"
            check(f"targets.{name}", of_store.words, of_training.words, remedy)
