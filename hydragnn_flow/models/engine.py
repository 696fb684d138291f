"""Models around a network that an engine (external library) has built.

They check the network's outputs, convert units, and compute forces and stress. The network is a
module that gets a batch without labels, in the precision of its weights, and returns numbers of
order one. The outputs are checked in every call, because a wrong name or shape could be broadcast
into a loss with another meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.config.base import with_place
from hydragnn_flow.config.network import EngineNetwork, engine_of
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.branches import branch_of_graph
from hydragnn_flow.models.build_outputs import (
    asked_outputs,
    check_branches,
    check_potential,
    energy_units,
    has_stress,
)
from hydragnn_flow.models.geometry import STRESS, GraphBatch, by_volume, in_voigt
from hydragnn_flow.models.heads import NOISE_SUFFIX, Output, Rescale
from hydragnn_flow.models.layers import of_branch, pack_exact, unpack_exact
from hydragnn_flow.models.model import Model
from hydragnn_flow.models.potential import EnergyUnits, Potential

# Keys of a batch that are cast to the precision of the weights.
_INPUTS = ("x", "pos", "edge_attr", "edge_shifts", "cell", "pe", "rel_pe", "graph_attr")
# What names in the state of the engine's module have before them.
_NETWORK = "network."
_ROWS = {"graph": "graph", "node": "atom"}


class Shape(NamedTuple):
    """Shape of a network's output: level of its rows (graph or node) and number of columns."""

    level: str
    dim: int


class EngineModel(Model):
    """Base class of models whose network an engine (external library) has built.

    Parameters
    ----------
    engine
        Name of the engine, used in error messages.
    network
        Module that the engine has built.
    targets
        Keys of the batch that hold labels, which are hidden from the network.
    """

    def __init__(self, engine: str, network: nn.Module, targets: Sequence[str]) -> None:
        super().__init__()
        self.engine = engine
        self.network = network
        self.targets = tuple(targets)

    def inputs(self, batch: GraphBatch) -> Any:
        """Return a copy of a batch without labels, in the precision of the network's weights.

        The copy is shallow: the network may replace keys of the copy, but not overwrite tensors.
        """
        seen: Any = copy.copy(batch)
        for name in self.targets:
            if name in seen:
                del seen[name]
        for name in _INPUTS:
            if name in seen:
                seen[name] = seen[name].to(self.dtype)
        return seen

    def outputs(
        self, inputs: Any, asked: Mapping[str, Shape], possible: Mapping[str, Shape] | None = None
    ) -> dict[str, Tensor]:
        """Return the network's outputs for a batch by name, after checking their shapes.

        Parameters
        ----------
        inputs
            Batch returned by :meth:`inputs`.
        asked, possible
            Shapes of the required outputs, and of the optional outputs, by name; None for no
            optional ones.

        Raises
        ------
        InputError
            If an output is missing, superfluous, or of another shape.
        """
        found = self.network(inputs)
        if not isinstance(found, dict):
            raise self._wrong(
                f"returns a {type(found).__name__}; return a dict from output name to tensor"
            )
        known = {**(possible or {}), **asked}
        for name, shape in asked.items():
            if name not in found:
                raise self._wrong(
                    f"returns {', '.join(map(repr, found)) or 'nothing'}, but no output {name!r}; "
                    f"return it as [number of {_ROWS[shape.level]}s, {shape.dim}]"
                )
        rows = {"graph": inputs.num_graphs, "node": len(inputs.batch)}
        for name, values in found.items():
            if name not in known:
                raise self._wrong(
                    f"returns an output {name!r} that nobody asked for; asked for are "
                    f"{', '.join(map(repr, known))}"
                )
            if not isinstance(values, Tensor):
                raise self._wrong(f"returns a {type(values).__name__} for {name!r}, and no tensor")
            level, dim = known[name]
            if tuple(values.shape) != (rows[level], dim):
                raise self._wrong(
                    f"returns {name!r} with the shape {list(values.shape)} for {rows['graph']} "
                    f"graphs of {rows['node']} atoms; return {[rows[level], dim]}, a row for each "
                    f"{_ROWS[level]}"
                )
        return found

    def node_features(self, batch: GraphBatch) -> Tensor:
        """Return the features of each atom [n_atoms, k] that the engine's module computes.

        Raises
        ------
        InputError
            If that module has no method ``node_features``.
        """
        tells = getattr(self.network, "node_features", None)
        if tells is None:
            raise self._wrong(
                "does not tell the features of atoms, by which structures are told apart; give its "
                "module a method node_features(batch)"
            )
        features: Tensor = tells(self.inputs(batch))
        return features

    def _levered(self, batch: GraphBatch) -> dict[str, Tensor]:
        if self.leverage is None or not hasattr(self.network, "node_features"):
            return {}
        return self.levered(self.node_features(batch), batch)

    def is_of_encoder(self, name: str) -> bool:
        """Return whether the state-dict tensor called ``name`` belongs to the encoder.

        A module of the network is a head if the network's attribute ``head_names`` names it, and
        otherwise part of the encoder.
        """
        heads = getattr(self.network, "head_names", ())
        own = name.removeprefix(_NETWORK)
        return own != name and not any(f"{own}.".startswith(f"{head}.") for head in heads)

    def read_weights(self, file: str | Path) -> dict[str, Tensor]:
        """Return the weights in an engine's file, by the names in this model's state dict.

        With these weights the network's outputs are in the data's units. So the result has scales
        of 1, and means and reference energies of 0.

        Raises
        ------
        InputError
            If the network has no method ``read_weights``.
        """
        reads = getattr(self.network, "read_weights", None)
        if reads is None:
            raise InputError(
                f"start_from: the engine {self.engine} reads no weights; give its module a method "
                f"read_weights(file), or remove start_from"
            )
        weights = {f"{_NETWORK}{name}": value for name, value in reads(Path(file)).items()}
        for name, value in self.state_dict().items():
            if not name.startswith(_NETWORK):
                unit = float(name.endswith(("std", "scale")))
                weights[name] = pack_exact([unit] * value.numel()).reshape(value.shape)
        return weights

    def _wrong(self, what: str) -> InputError:
        return InputError(f"network: engine {self.engine} {what}")


class EngineProperties(EngineModel):
    """Model that predicts graph and node targets with a network that an engine has built.

    The network returns each target's difference from the target's mean, in units of the target's
    standard deviation.

    Parameters
    ----------
    engine, network, targets
        The same as for :class:`EngineModel`.
    outputs
        Targets to predict, with their statistics.
    noise
        True if the network also returns, for each target, numbers of any sign whose softplus is
        the noise.
    """

    def __init__(
        self,
        engine: str,
        network: nn.Module,
        targets: Sequence[str],
        outputs: Sequence[Output],
        noise: bool,
    ) -> None:
        super().__init__(engine, network, targets)
        self.n_branches = len(outputs[0].mean)
        self.scales = nn.ModuleList(Rescale(output, noise) for output in outputs)
        self.asked = {
            output.name + suffix: Shape(output.level, len(output.mean[0]))
            for output in outputs
            for suffix in (("", NOISE_SUFFIX) if noise else ("",))
        }

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return predictions by output name, [n_graphs, d] or [n_atoms, d], in the data's units."""
        raw = self.outputs(self.inputs(batch), self.asked)
        branch = branch_of_graph(batch, self.n_branches)
        of_atom = None if branch is None else branch.index_select(0, batch.batch)
        found: dict[str, Tensor] = {}
        for scale in self.scales:
            assert isinstance(scale, Rescale)
            parts = [raw[scale.name + suffix] for suffix in ("", NOISE_SUFFIX)[: 1 + scale.noise]]
            found |= scale(torch.cat(parts, dim=1), branch if scale.exact else of_atom)
        return found | self._levered(batch)


class EnginePotential(EngineModel, Potential):
    """Interatomic potential whose energy comes from a network that an engine has built.

    Forces and stress are gradients of the energy. If the network also returns forces, they replace
    the gradient by positions.

    Parameters
    ----------
    engine, network, targets
        The same as for :class:`EngineModel`.
    units
        Scales and reference energies that turn the network's output into an energy.
    stress
        If true, compute the stress too, for which the graphs need the key ``cell``; if false, only
        energy and forces.
    """

    def __init__(
        self,
        engine: str,
        network: nn.Module,
        targets: Sequence[str],
        units: EnergyUnits,
        stress: bool,
    ) -> None:
        super().__init__(engine, network, targets)
        self.stress = stress
        self.keep_units(units)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return energies [n_graphs, 1], float64, and forces [n_atoms, 3] of a batch of graphs.

        Energies are in the store's unit of energy, such as eV, and forces in this unit per Å. If
        asked for, ``stress`` [n_graphs, 6] in this unit per Å³ is added, in Voigt order. Outputs
        carry gradients in training mode and are detached otherwise.
        """
        differentiable = self.training and torch.is_grad_enabled()
        inputs = self.inputs(batch)
        strain = None
        with torch.enable_grad():
            inputs.pos = inputs.pos.detach().requires_grad_(True)
            slopes_over = [inputs.pos]
            if self.stress:
                strain = inputs.pos.new_zeros(inputs.num_graphs, 3, 3, requires_grad=True)
                slopes_over.append(strain)
                _strain(inputs, strain)
            raw = self.outputs(inputs, {"energy": Shape("graph", 1)}, {"forces": Shape("node", 3)})
            slopes: Sequence[Tensor | None] = [None] * len(slopes_over)
            if "forces" not in raw or strain is not None:
                slopes = self._slopes(raw["energy"], slopes_over, differentiable)
        branch = branch_of_graph(batch, self.n_branches)
        scale = of_branch(unpack_exact(self.scale), branch)
        of_atom = scale if branch is None else scale.index_select(0, batch.batch)
        of_positions = raw["forces"] if "forces" in raw else -_known(slopes[0])
        outputs = {
            "energy": raw["energy"].double() * scale + self.references(batch),
            "forces": of_positions * of_atom.to(of_positions.dtype),
        }
        if strain is not None:
            virial = in_voigt(_known(slopes[1]))
            outputs[STRESS] = by_volume(virial * scale.to(virial.dtype), inputs.cell.detach())
        if differentiable:
            return outputs
        return {name: values.detach() for name, values in outputs.items()} | self._levered(batch)

    def _slopes(
        self, energy: Tensor, over: list[Tensor], differentiable: bool
    ) -> Sequence[Tensor | None]:
        try:
            return torch.autograd.grad(energy.float().sum(), over, create_graph=differentiable)
        except RuntimeError as error:
            if "does not require grad" not in str(error) and "not have been used" not in str(error):
                raise
            raise self._wrong(
                "returns an 'energy' that does not follow from batch.pos, so that it has no "
                "forces; compute it from the positions, or return 'forces' as well"
            ) from None


def build_with_engine(config: EngineNetwork, manifest: Manifest) -> EngineModel:
    """Build a network with its engine (external library), and the model that contains the network.

    ``manifest`` is that of the store whose targets are to be learnt.

    Raises
    ------
    InputError
        If the network needs something that the store lacks, or the engine fails.
    """
    architecture, targets = config.Architecture, list(manifest.targets)
    _check_lists(config, manifest)
    check_branches(config.branches, manifest, "branches")
    noise = config.Training.loss_function_type == "GaussianNLLLoss"
    if not architecture.enable_interatomic_potential:
        outputs = asked_outputs(config, manifest)
        return EngineProperties(config.engine, _built(config, manifest), targets, outputs, noise)
    check_potential(config, manifest)
    if noise:
        raise InputError(
            f"network: Training.loss_function_type = 'GaussianNLLLoss' is not for potentials of "
            f"the engine {config.engine}, whose noise nobody knows; write 'mse', 'mae' or "
            f"'smooth_l1'"
        )
    stress = has_stress(architecture, manifest)
    network, units = _built(config, manifest), energy_units(config, manifest)
    return EnginePotential(config.engine, network, targets, units, stress)


def _built(config: EngineNetwork, manifest: Manifest) -> nn.Module:
    try:
        network = engine_of(config.engine)(config.to_json(), manifest)
    except InputError:
        raise
    except Exception as error:  # any error of the user's function
        raise InputError(
            f"network: engine {config.engine} cannot build this network "
            f"({with_place(error)}); correct its keys or the engine"
        ) from error
    if not isinstance(network, nn.Module):
        raise InputError(
            f"network: engine {config.engine} returns a {type(network).__name__}, and no "
            f"torch.nn.Module; correct it"
        )
    if not any(weight.requires_grad for weight in network.parameters()):
        raise InputError(
            f"network: engine {config.engine} returns a module without weights to train; correct it"
        )
    return network


def _check_lists(config: EngineNetwork, manifest: Manifest) -> None:
    """Raise an error if `Architecture.radius` is not the cutoff of the store's neighbour lists."""
    radius, cutoff = config.Architecture.radius, manifest.cutoff
    if radius is not None and cutoff is not None and radius != cutoff:
        raise InputError(
            f"network: Architecture.radius = {radius} Å, but the store's neighbour lists end at "
            f"{cutoff} Å, which the engine {config.engine} does not know; write {cutoff} or "
            f"prepare the store anew"
        )


def _strain(inputs: Any, strain: Tensor) -> None:
    """Deform the graphs of a batch in place: every vector v becomes (1 + ε) v.

    ε is the symmetric part of ``strain`` [n_graphs, 3, 3].
    """
    symmetric = 0.5 * (strain + strain.transpose(1, 2))
    of_atom = symmetric.index_select(0, inputs.batch)
    of_edge = of_atom.index_select(0, inputs.edge_index[0])
    inputs.pos = inputs.pos + _times(of_atom, inputs.pos)
    inputs.edge_shifts = inputs.edge_shifts + _times(of_edge, inputs.edge_shifts)
    inputs.cell = inputs.cell + _times(symmetric.repeat_interleave(3, dim=0), inputs.cell)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors.unsqueeze(2)).squeeze(2)


def _known(slope: Tensor | None) -> Tensor:
    assert slope is not None  # the caller has asked for it
    return slope
