"""manifest.json: what a store holds, and the values models derive from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hydragnn_flow.data.store.integrity import FileRecord
from hydragnn_flow.errors import InputError

MANIFEST = "manifest.json"
VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Record):
    """One labelled quantity."""

    level: Literal["graph", "node"]
    """Whether each graph or each atom has one."""
    dim: int
    """Number of components."""
    unit: str = ""
    """Unit of the stored numbers; empty where unknown."""


class TargetStatistics(_Record):
    """Mean and standard deviation of each component over the training split."""

    mean: list[float]
    std: list[float]
    """1 where a component does not vary, so that it can divide."""


class Statistics(_Record):
    """Values derived from the training split only; nothing of the other splits leaks into them."""

    degree_histogram: list[int]
    """Number of atoms by number of incoming edges: index d counts the atoms with d."""
    avg_num_neighbors: float
    """Mean number of incoming edges of an atom."""
    element_energies: dict[int, float]
    """Least-squares energy of each element, by atomic number; empty without an energy target."""
    energy_per_atom_std: float
    """Standard deviation of what these leave of the energy, per atom; 1 where nothing is left."""
    forces_rms: float | None
    """Root mean square of the force components; None without a forces target."""
    targets: dict[str, TargetStatistics]


class SplitSize(_Record):
    """How much a split holds."""

    graphs: int
    atoms: int
    edges: int


class Shard(_Record):
    """One BP5 directory of the store."""

    path: str
    """Name within the store."""
    files: dict[str, FileRecord]
    """Its files by name; empty for a foreign .bp, which nothing is known about."""


class Manifest(_Record):
    """All of manifest.json."""

    version: Literal[1] = 1
    targets: dict[str, Target]
    units: dict[str, str]
    """Unit of each key that has a known one."""
    cutoff: float | None
    """Longest edge [Å]; None where unknown."""
    max_neighbours: int | None
    elements: list[int]
    """Atomic numbers that occur in any split, ascending."""
    node_features: list[str]
    """What the columns of ``x`` are."""
    splits: dict[str, SplitSize]
    statistics: Statistics
    provenance: dict[str, Any]
    """Where the data come from; prepare compares it before it reuses a store."""
    shards: list[Shard]


def load_manifest(store: Path) -> Manifest:
    """Read and check the manifest of a store directory.

    Raises
    ------
    InputError
        Where it is missing, not JSON, of a newer version, or not a manifest.
    """
    path = store / MANIFEST
    if not path.is_file():
        raise InputError(
            f"{path} is missing: {store} is no complete store; prepare it again or restore a copy"
        )
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=True)[0]
        key = ".".join(str(part) for part in first["loc"])
        if key == "version":
            raise InputError(
                f"{path}: version {first['input']!r} is not the version {VERSION} this release "
                "reads; upgrade hydragnn_flow"
            ) from None
        raise InputError(
            f"{path}: {key or 'file'}: {first['msg']}: the store is damaged; "
            "delete it and prepare it again, or restore a copy"
        ) from None
