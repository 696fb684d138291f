"""Manifest of a store: content, checksums, and the values that models derive from it."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from hydragnn_flow.config.base import explain
from hydragnn_flow.data.neighbours import Truncation
from hydragnn_flow.data.store.integrity import FileRecord
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.plain_files import FROM_A_COPY, read_json

MANIFEST = "manifest.json"
VERSION = 3
ENERGY = "energy"
"""Name of the target that is a structure's total energy."""
ENCODINGS = "laplacian_encodings"
"""Key of the provenance with the number of computed encodings."""
GRAPH_ATTR = "graph_attr"
"""Key of the provenance with the names of the quantities in the graphs' key `graph_attr`."""
_CHECKSUM = "crc32"
# eV/atom, Ry per atom, kJ atom^-1
_BY_ATOM = re.compile(r"(/|\bper\b)\s*atoms?\b|\batoms?\s*\^?\s*-\s*1", re.IGNORECASE)

Dtypes = Literal["hydragnn", "compact"]
T = TypeVar("T", bound=np.generic)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Record):
    """Description of a labelled quantity that networks learn, of graphs or of atoms."""

    level: Literal["graph", "node"]
    """Level of the label: one per graph, or one per atom."""
    dim: PositiveInt
    """Number of components."""
    unit: str = ""
    """Unit of the stored numbers; empty if unknown."""
    extensive: bool | None = None
    """True if a graph's value is a sum over its atoms; None if name and unit decide."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if each component is the probability of one; labels are 0 or 1."""

    @property
    def words(self) -> str:
        """Shape, unit and classes in words, for messages on differences between targets."""
        classes = f", classes {', '.join(self.classes)}" if self.classes else ""
        return f"{self.dim} per {self.level} in {self.unit or 'unknown units'}{classes}"

    def is_sum(self, name: str) -> bool:
        """Return True if labels of this target, called ``name``, are sums over the atoms.

        A target that does not say so is one if it is an energy that is not given per atom.
        """
        if self.level == "node":
            return False
        by_name = name == ENERGY and not _BY_ATOM.search(self.unit)
        return by_name if self.extensive is None else self.extensive

    def sizes_of(self, residuals: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return sizes of residuals [...]: absolute, or squared for probabilities of classes.

        The mean over the squares is the Brier score of two classes.
        """
        return np.asarray(np.square(residuals) if self.classes else np.abs(residuals))

    def rows_of(self, values: NDArray[T], n_atoms: NDArray[np.int64]) -> NDArray[T]:
        """Repeat values of structures [n], so that each row of the target has one.

        A graph target has a row for each structure: ``values`` is returned as it is. A node target
        has a row for each of the structure's ``n_atoms`` atoms.
        """
        return values if self.level == "graph" else np.repeat(values, n_atoms)


class TargetStatistics(_Record):
    """Mean and standard deviation of each component of a target over the training split."""

    mean: list[float]
    std: list[float]
    """Standard deviation of each component; 1 if it does not vary, so that it can divide."""
    share: float = 1.0
    """Mean weight of the structures' or atoms' labels in the training loss, 0 where one is missing:
    the loss is divided by it."""


class LabelStatistics(_Record):
    """Statistics of training structures' labels, such as the mean of each target."""

    element_energies: dict[int, float]
    """Least-squares energy of each element, by atomic number; empty without an energy target."""
    energy_per_atom_std: float
    """Standard deviation of the energy per atom after subtracting the element energies, in the
    energy's unit; 1 if nothing remains."""
    reference_energies: dict[int, float] = {}
    """Given energy of each element, by atomic number, plus a shift that is equal for all elements.
    The shift makes the mean residual per atom zero. The mapping is empty if energies are fitted."""
    forces_rms: float | None
    """Root mean square of the force components; None without a forces target."""
    targets: dict[str, TargetStatistics]
    elements: list[int] = []
    """Atomic numbers in training structures, with or without labels; empty in older stores."""

    @property
    def seen(self) -> set[int]:
        """Atomic numbers in training structures; empty if they are unknown."""
        return set(self.elements or self.element_energies)


class BranchStatistics(LabelStatistics):
    """Statistics of the labels of the training structures of one branch.

    A branch is the set of a network's output heads for one data set.
    """

    graphs: int
    atoms: int


class Statistics(LabelStatistics):
    """Statistics of a store's training structures: labels, and numbers of edges at atoms.

    Nothing leaks from the other splits.
    """

    degree_histogram: list[int]
    """Numbers of atoms with 0, 1, 2, … incoming edges."""
    avg_num_neighbors: float
    """Mean number of incoming edges of an atom."""
    by_branch: dict[int, BranchStatistics] = {}
    """Statistics of the labels of each branch's structures, if there are several branches: data
    sets of different levels of theory have energies that differ by hundreds of eV per atom."""

    def of_branches(self, number: int) -> Sequence[LabelStatistics]:
        """Return label statistics for each of a network's ``number`` branches.

        A branch is the set of a network's output heads for one data set. A network of one branch,
        and a branch without training structures, get the statistics of all structures together.
        """
        if number == 1:
            return [self]
        return [self.by_branch.get(branch, self) for branch in range(number)]


class SplitSize(_Record):
    """Numbers of graphs, atoms and edges of a split."""

    graphs: int = Field(default=0, ge=0)
    atoms: int = Field(default=0, ge=0)
    edges: int = Field(default=0, ge=0)

    def __add__(self, other: SplitSize) -> SplitSize:
        return SplitSize(
            graphs=self.graphs + other.graphs,
            atoms=self.atoms + other.atoms,
            edges=self.edges + other.edges,
        )


class Key(_Record):
    """Description of a key (named tensor of each graph): type, shape, and number of rows."""

    dtype: str = Field(pattern="^(float32|float64|u?int(8|16|32|64))$")
    """Data type of the tensors; `compact` stores node and edge integers in a narrower type."""
    dim: int = Field(ge=0)
    """Dimension along which graphs are concatenated."""
    shape: tuple[PositiveInt, ...]
    """Extents of the other dimensions."""
    node: bool
    """True if each graph has as many rows as atoms."""
    edge: bool
    """True if each graph has as many rows as edges."""
    rows: int | None = Field(ge=0)
    """Number of rows of each graph, if all have the same; otherwise None."""

    def array_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the key's tensors, joined to ``rows`` rows along ``dim``."""
        return (*self.shape[: self.dim], rows, *self.shape[self.dim :])

    def __and__(self, other: Key) -> Key:
        """Return the description that is true of a key in two shards together."""
        return self.model_copy(
            update={
                "node": self.node and other.node,
                "edge": self.edge and other.edge,
                "rows": self.rows if self.rows == other.rows else None,
            }
        )

    def fits(self, other: Key) -> bool:
        """Return True if the key's tensors can be joined with those that ``other`` describes."""
        return (self.dtype, self.dim, self.shape) == (other.dtype, other.dim, other.shape)


class Part(_Record):
    """Position of one target in each graph's array ``y``, in which targets are packed.

    The target begins at the offset ``after + after_each * n_atoms``.
    """

    after: int
    """Number of values before the target that belong to the whole graph."""
    after_each: int
    """Number of values before the target for each atom of the graph."""
    width: PositiveInt
    """Number of components of the target."""
    node: bool
    """True if each atom has the components; otherwise the graph has them."""


class Shard(_Record):
    """Description of a shard: a BP5 directory of the store, or one that is used in place."""

    path: str = Field(pattern=r"^(\.|\w[\w.-]*|/.+)$")
    """Name within the store; absolute for a shard in place."""
    files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], FileRecord]
    """Records of the shard's files by name; empty for a HydraGNN .bp opened without a store."""
    splits: dict[str, SplitSize]
    """Size of each split in the shard."""
    branch_runs: dict[str, list[tuple[int, int]]] = {}
    """Pairs of branch index and number of graphs, one for each run of consecutive graphs of one
    branch, by split. Missing if graphs do not name their branch, or branches change too often."""
    names: dict[str, str] = {}
    """Name in the file of each key that has another name there. `pbc` may be `cell`: periodic along
    all lattice vectors that are not zero."""
    constants: dict[str, int] = {}
    """Value of each key that the file does not have, the same for all graphs."""
    parts: dict[str, Part] = {}
    """Position of each key that is packed in the file's ``y``."""

    @property
    def is_in_place(self) -> bool:
        """True if the shard lies outside the store, which uses but does not own it."""
        return self.path.startswith("/")


class Manifest(_Record):
    """Content of a store's ``manifest.json``: its splits, targets, keys, statistics, shards.

    The file's own checksum, ``crc32``, is not part of it.
    """

    version: Literal[3] = 3
    dtypes: Dtypes = "hydragnn"
    """`hydragnn`: every number in its own type; `compact`: node and edge integers narrowed."""
    targets: dict[str, Target]
    units: dict[str, str]
    """Unit of each key with a known one."""
    cutoff: float | None
    """Maximum length of an edge [Å]; None if unknown."""
    max_neighbours: int | None
    truncation: Truncation | None = None
    """Neighbours within the cutoff that the edges leave out; None if they were not counted."""
    elements: list[int]
    """Atomic numbers that occur in any split, in ascending order."""
    node_features: list[str]
    """Names of the columns of ``x``."""
    branches: list[int] = []
    """Indices of the branches (output heads for one data set) of the graphs of all splits,
    ascending; empty if graphs name no branch."""
    branch_names: list[str] = []
    """Name of each branch's data set, from branch 0 on; empty without names."""
    keys: dict[str, Key]
    """Description of each key of the graphs, by name, in the order of the keys."""
    splits: dict[str, SplitSize]
    lacking: dict[str, dict[str, int]] = {}
    """Number of graphs without a label, by split and target, where there are any."""
    statistics: Statistics
    provenance: dict[str, Any]
    """Settings and inputs that the store was made from; compared before a store is reused."""
    shards: list[Shard] = Field(min_length=1)

    @property
    def bytes(self) -> int:
        """Size of all files of the store's shards together [bytes].

        The size is 0 for a HydraGNN file, where sizes are not recorded.
        """
        return sum(file.size for shard in self.shards for file in shard.files.values())

    @property
    def in_place(self) -> list[str]:
        """Paths of the shards (BP5 files) that the store uses in place, without a copy.

        The list is empty in a store of copies.
        """
        return [shard.path for shard in self.shards if shard.is_in_place]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Configuration of each source that the store was made from; empty if unknown."""
        one, several = self.provenance.get("source"), self.provenance.get("sources")
        return list(several or ([one] if one else []))

    @property
    def unseen(self) -> set[int]:
        """Atomic numbers that occur in other splits but in no training structure.

        The set is empty if they are unknown, as in older stores without an energy target.
        """
        seen = self.statistics.seen
        return set(self.elements) - seen if seen else set()

    @property
    def masked(self) -> set[str]:
        """Names of the targets that some graphs have no label of."""
        return {name for numbers in self.lacking.values() for name in numbers}

    @property
    def data_sets(self) -> dict[int, str]:
        """Name of the data set of each branch, by branch index.

        A branch is the set of a network's output heads for one data set. The dict is empty unless
        several branches have statistics.
        """
        if len(self.statistics.by_branch) < 2:
            return {}
        names = dict(enumerate(self.branch_names))
        return {branch: names.get(branch, str(branch)) for branch in self.statistics.by_branch}

    @property
    def has_atoms(self) -> bool:
        """True if nodes are atoms: node feature 0 is the atomic number."""
        return self.node_features[:1] == ["atomic_number"]

    def is_extensive(self, target: str) -> bool:
        """Return True if a target is a sum over a graph's atoms, so that errors are per atom.

        Training, search, ensemble and report all use this. If the data do not state it, only the
        target ``energy`` is a sum, unless its unit is one per atom.
        """
        known = self.targets.get(target)
        return known is not None and known.is_sum(target)

    @model_validator(mode="after")
    def _adds_up(self) -> Manifest:
        for name, size in self.splits.items():
            sizes = [shard.splits.get(name, SplitSize()) for shard in self.shards]
            if sum(sizes, SplitSize()) != size:
                raise ValueError(f"the shards' sizes of {name} do not add up to it")
        missing = {"x", "pos", "edge_index"} - self.keys.keys()
        if missing:
            raise ValueError(f"keys: {', '.join(sorted(missing))} are missing")
        return self


def save_manifest(store: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` with its checksum into the directory of a store."""
    values = json.loads(manifest.model_dump_json())
    values[_CHECKSUM] = _checksum(values)
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    (store / MANIFEST).write_text(text, encoding="utf-8")


def _checksum(values: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in values.items() if key != _CHECKSUM}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def load_manifest(store: Path) -> Manifest:
    """Read and validate the manifest of a store directory.

    Raises
    ------
    StoreError
        If the manifest is missing, has changed since it was written, is of another version, or is
        not valid.
    """
    path = store / MANIFEST
    if not path.is_file():
        raise StoreError(
            f"{path} is missing: {store} is no complete store; prepare it again or restore a copy"
        )
    again = "the store is damaged; delete it and prepare it again, or restore a copy"
    try:
        values = read_json(path, again)
    except InputError as error:
        raise StoreError(str(error)) from None
    version = values.get("version")
    if version != VERSION:
        raise StoreError(
            f"{path}: version {version!r} is not the version {VERSION} this release reads; "
            "prepare the store again, or use the release that wrote it"
        )
    checksum = values.pop(_CHECKSUM, None)
    if checksum != _checksum(values):
        raise StoreError(f"{path} has changed since it was written (its checksum differs): {again}")
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        raise StoreError(f"{explain(error, path)}: {again}") from None


def kept_manifest(path: Path) -> Manifest:
    """Read the manifest that an ensemble keeps of the store it was trained on.

    Raises
    ------
    InputError
        If the file is not a manifest; the message names the key.
    """
    try:
        return Manifest.model_validate(read_json(path, FROM_A_COPY))
    except ValidationError as error:
        raise explain(error, path) from None


def symbols(numbers: Iterable[int]) -> list[str]:
    """Return the symbols of elements given by atomic number, in ascending order."""
    from ase.data import chemical_symbols

    known = range(len(chemical_symbols))
    return [chemical_symbols[z] if z in known else str(z) for z in sorted(numbers)]
