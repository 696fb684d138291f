"""Sources that bring graphs, or more than a chemical element for each node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.targets import TargetConfig, Targets


def _with_levels(targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    for name, target in targets.items():
        if target.level is None:
            raise ValueError(
                f"{name} needs a level, graph or node, as in "
                f"{name}: {{unit: {target.unit!r}, level: graph}}"
            )
    return targets


LevelledTargets = Annotated[Targets, AfterValidator(_with_levels)]
"""Targets of files whose arrays do not say what they belong to."""


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError(f"no file has a NUL in its name, got {name!r}")
    return name


FileName = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]


class Features(Section):
    """Columns of a raw file, as HydraGNN's `Dataset` section names them.

    As there, a quantity with `_scaled_num_nodes` in its name is divided by the number of atoms.
    """

    name: tuple[str, ...] = ()
    """Names of the quantities."""
    dim: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Number of columns of each."""
    column_index: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """First column of each, counted from 0."""

    @model_validator(mode="after")
    def _alike(self) -> Features:
        if not len(self.name) == len(self.dim) == len(self.column_index):
            raise ValueError("name, dim and column_index need one entry for each quantity")
        if len(set(self.name)) != len(self.name):
            raise ValueError("name each quantity once")
        return self


class FilesSection(Section):
    """Files of training, validation and test data, and what is to be learnt from them."""

    train: FileName
    """File, glob or directory for training. Splits without files of their own are drawn from it."""
    val: FileName | None = None
    """File, glob or directory for validation."""
    test: FileName | None = None
    """File, glob or directory for the final test."""
    targets: Targets
    """Name of each target -> its unit, or its unit and its key in the files."""


class RawSection(FilesSection):
    """Text files of columns, one structure each."""

    node_features: Features
    """The atoms' columns."""
    graph_features: Features = Features()
    """The columns that belong to the whole structure."""
    inputs: tuple[str, ...] = Field(min_length=1)
    """Node features that become columns of `x`. `num_of_protons`, HydraGNN's name for it, and
    `atomic_number` choose the chemical element."""
    targets: Targets
    """Node and graph features to learn: name of each target -> its unit, or its unit and, as its
    key, the name of the feature."""

    @model_validator(mode="after")
    def _known_names(self) -> RawSection:
        of_nodes, of_graphs = self.node_features.name, self.graph_features.name
        if both := set(of_nodes) & set(of_graphs):
            raise ValueError(f"node_features and graph_features both name {min(both)!r}; rename")
        for name in self.inputs:
            if name not in of_nodes:
                raise ValueError(f"inputs names {name!r}, which is not among node_features.name")
        for name, target in self.targets.items():
            if (feature := target.key or name) not in (*of_nodes, *of_graphs):
                raise ValueError(
                    f"targets names {feature!r}, which is not among node_features.name or "
                    "graph_features.name"
                )
            if target.level is not None:
                raise ValueError(f"targets.{name}.level: the feature tells; leave level out")
        return self


class LsmsSource(RawSection):
    """HydraGNN's LSMS text format: graph features on the first line, then a line for each atom.

    Column 0 of an atom's line is its number of protons, columns 2 to 4 are its position. They are
    taken to be in Å, like the cutoff; LSMS itself counts in bohr.
    """

    format: Literal["lsms"]
    subtract_protons: str | None = None
    """Node feature from which the number of protons is subtracted. LSMS writes the number of
    electrons of an atom; the difference is what the atom has gained. HydraGNN always subtracts from
    its second node feature."""
    cell: tuple[tuple[float, float, float], ...] | None = None
    """Lattice vectors [Å] of every structure, periodic in all directions. Without them each
    structure is an isolated cluster."""

    @model_validator(mode="after")
    def _sensible(self) -> LsmsSource:
        if self.cell is not None and len(self.cell) != 3:
            raise ValueError("cell needs three lattice vectors")
        name = self.subtract_protons
        if name is not None and name not in self.node_features.name:
            raise ValueError(
                f"subtract_protons names {name!r}, which is not among node_features.name"
            )
        return self


class CfgSource(RawSection):
    """AtomEye CFG files, with graph features on the first line of a `.bulk` file beside each.

    An atom's columns are its number of protons, its mass, and the file's auxiliary properties:
    `c_peratom`, `fx`, `fy`, `fz` first, as HydraGNN has them, others in the file's order.
    """

    format: Literal["cfg"]


class PygSource(FilesSection):
    """Files `.pt` of PyG graphs: one `Data`, a list of them, or what InMemoryDataset saves.

    Nodes have the columns of `x`, or else `z` as their chemical elements. Edges are kept where the
    graphs have them and built within the cutoff where not. Keys without a meaning here that are no
    target are not read.
    """

    format: Literal["pyg"]
    targets: LevelledTargets
    """Name of each target -> level, unit, and key where it has another name in the files."""
    node_features: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of the columns of `x`; `atomic_number` is the chemical element. The default is x_0,
    x_1, …, all plain numbers."""


class HydragnnSource(Section):
    """A `.bp` file that HydraGNN wrote, or a store, with the splits it has."""

    format: Literal["hydragnn"]
    file: FileName
    """The `.bp` or the store's directory."""
    targets: Targets | None = None
    """Name of each target -> its unit, and its key and level if they differ. The default is the
    targets that the file itself names; HydraGNN's files name them without units."""
    output_dim: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Number of components of each target, to read the targets from HydraGNN's packed `y`. Its
    order is that of `targets`."""

    @model_validator(mode="after")
    def _packing(self) -> HydragnnSource:
        if self.output_dim is None:
            return self
        targets = self.targets or {}
        if len(self.output_dim) != len(targets):
            raise ValueError("output_dim needs one entry for each of targets")
        _with_levels(targets)
        return self


class VoronoiSource(FilesSection):
    """Voronoi graphs of point sets: grains, cells or particles of a microstructure.

    A `.npz` holds one set: `points` [n, d] with d of 2 or 3, and further arrays. A `.csv` holds one
    set too: columns `x`, `y` and perhaps `z`, and one for each feature.
    """

    format: Literal["voronoi"]
    targets: LevelledTargets
    """Name of each target -> level, unit, and its array or column where that has another name."""
    features: tuple[str, ...] = ()
    """Arrays of the points that become columns of `x`. The last column is always the volume (area)
    of the cell."""
    box: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest coordinate of each direction. By default each `.npz` brings its own, an
    array `box` [d, 2]."""
    periodic: tuple[Literal["x", "y", "z"], ...] = ()
    """Directions in which the box is periodic. The other directions end in walls."""

    @field_validator("box")
    @classmethod
    def _has_volume(
        cls, box: tuple[tuple[float, float], ...] | None
    ) -> tuple[tuple[float, float], ...] | None:
        if box is not None and (len(box) not in (2, 3) or any(low >= high for low, high in box)):
            raise ValueError("give [lowest, highest] of two or three directions")
        return box


class MeshSource(FilesSection):
    """Finite-element meshes in any format meshio reads: nodes are mesh points, edges those of the
    elements (of higher-order elements, those between their corners)."""

    format: Literal["mesh"]
    targets: LevelledTargets
    """Name of each target -> level, unit, and key where it has another name: those of nodes are
    point data, those of graphs columns of `table`."""
    features: tuple[str, ...] = Field(min_length=1)
    """Point data that become columns of `x`."""
    table: FileName | None = None
    """CSV of the graphs' targets: a column `file`, the mesh's path seen from the table, and one
    column for each target."""
    elements: tuple[str, ...] | None = Field(default=None, min_length=1)
    """meshio's names of the element types that make the graph. The default is those of the highest
    dimension in a mesh, because the others mark its boundary."""
    loose_points: Literal["refuse", "drop"] = "refuse"
    """What happens to points that belong to no element."""

    @model_validator(mode="after")
    def _complete(self) -> MeshSource:
        of_graphs = [name for name, label in self.targets.items() if label.level == "graph"]
        if of_graphs and self.table is None:
            raise ValueError(f"the graph target {of_graphs[0]!r} needs a table; name its file")
        return self
