"""Interatomic potentials: an energy, and its gradients as forces and stress, in a store's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydragnn_flow.models.branches import branch_of_graph
from hydragnn_flow.models.embedding import N_ELEMENTS
from hydragnn_flow.models.geometry import STRESS, Geometry, GraphBatch, stress_of, sum_by
from hydragnn_flow.models.heads import NOISE_SUFFIX, BranchedHeads, deviations
from hydragnn_flow.models.layers import of_branch, pack_by_branch, unpack_exact
from hydragnn_flow.models.model import Encoder, HydraModel, Model


class PotentialNoise(nn.Module):
    """Heads for the noise (standard deviations) of a potential's energies and forces.

    The noise of an energy is that of independent atoms, ``√Σ σ²``. The three components of a force
    share one deviation, so it does not depend on the frame. Gradients do not flow into the
    features, so the noise does not affect what energies and forces are learnt from.

    Parameters
    ----------
    heads
        Heads that return one number per atom for each target.
    scales
        Standard deviation where the softplus of a head's output is one, by target and then by
        branch: `energy` in the store's unit of energy, such as eV, or `forces` in this unit per Å.
    """

    def __init__(self, heads: BranchedHeads, scales: Mapping[str, Sequence[float]]) -> None:
        super().__init__()
        self.heads = heads
        self.targets = list(scales)
        for target, values in scales.items():
            rows = pack_by_branch([[value] for value in values])
            self.register_buffer(f"{target}_scale", rows, persistent=False)

    def forward(
        self, nodes: Tensor, geometry: Geometry, branch: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the standard deviations of the noise of energies and forces, by output name.

        Only targets that have ``scales`` are returned. The deviation of the energy is [n_graphs, 1]
        in the store's unit of energy, such as eV, float64; that of forces is [n_atoms, 3] in this
        unit per Å. ``branch`` is the index of each atom's branch, int64 [n_atoms], or None.
        """
        found = {}
        outputs = self.heads(nodes.detach(), geometry, branch)
        for target, raw in zip(self.targets, outputs, strict=True):
            scale = of_branch(unpack_exact(self.get_buffer(f"{target}_scale")), branch)
            deviation = deviations(raw.to(nodes.dtype)) * scale.to(nodes.dtype)
            if target == "energy":
                variances = sum_by(deviation.double().square(), geometry.graph, geometry.n_graphs)
                deviation = variances.sqrt()
            else:
                deviation = deviation.expand(-1, 3)
            found[target + NOISE_SUFFIX] = deviation
        return found


@dataclass(frozen=True)
class EnergyUnits:
    """Scales and reference energies that turn a network's output, of order one, into an energy.

    Attributes
    ----------
    scales
        Energy that an output of 1 means, by branch (heads of one data set), in the store's unit of
        energy, such as eV.
    element_energies
        Reference energy by branch and atomic number, in the same unit; zero for a missing atomic
        number.
    number_column
        Index of the node feature with the atomic number.
    """

    scales: Sequence[float]
    element_energies: Sequence[Mapping[int, float]]
    number_column: int


class Potential(Model):
    """Base class of interatomic potentials: ``energy = scale * output + Σ element_energies[Z]``.

    Scale and element energies belong to the branch (heads of one data set) of a graph. The second
    term, which can be thousands of eV, is added in float64, so that the first term loses no digits.
    A loss in float64 on ``energy`` is therefore exact.
    """

    scale: Tensor
    element_energies: Tensor
    stress: bool
    """True if the stress is computed too, for which the graphs need the key ``cell``."""

    def keep_units(self, units: EnergyUnits) -> None:
        """Store energy scales and reference energies as buffers that stay float64."""
        self.n_branches = len(units.scales)
        self.number_column = units.number_column
        self.register_buffer("scale", pack_by_branch([[scale] for scale in units.scales]))
        energies = [
            [known.get(number, 0.0) for number in range(N_ELEMENTS)]
            for known in units.element_energies
        ]
        self.register_buffer("element_energies", pack_by_branch(energies))

    def references(self, batch: GraphBatch) -> Tensor:
        """Return the sum of the atoms' reference energies in each graph, [n_graphs, 1].

        It is in the store's unit of energy, such as eV, float64.
        """
        numbers = batch.x[:, self.number_column].long()
        branch = branch_of_graph(batch, self.n_branches)
        if branch is not None:  # the tables of the branches are concatenated
            numbers = numbers + N_ELEMENTS * branch.index_select(0, batch.batch)
        energies = unpack_exact(self.element_energies).view(-1).index_select(0, numbers)
        return sum_by(energies[:, None], batch.batch, batch.num_graphs)


class PotentialModel(HydraModel, Potential):
    """Interatomic potential whose energy is a sum over atoms, with forces and stress as gradients.

    The energy is ``Σ scale * ε(node features) + Σ element_energies[Z]`` over the atoms of a graph.
    Scale and element energies belong to the branch (heads of one data set) of the graph. The first
    sum is computed in the precision of the parameters, the second in float64.

    A graph head acts on each atom before the sum, like a node head. HydraGNN applies it to the sum
    of the features, so that the energy of two equal cells differs from twice that of one.

    Parameters
    ----------
    encoder
        Encoder that computes node features.
    atomic_energy
        Heads that return one number per atom.
    units
        Scales and reference energies that turn this number into an energy.
    stress
        If true, compute the stress too, for which the graphs need the key ``cell``.
    noise
        Heads of the noise of energies and forces; None if no noise is learnt.
    """

    def __init__(
        self,
        encoder: Encoder,
        atomic_energy: BranchedHeads,
        units: EnergyUnits,
        stress: bool = False,
        noise: PotentialNoise | None = None,
    ) -> None:
        super().__init__(encoder)
        self.atomic_energy = atomic_energy
        self.stress = stress
        self.noise = noise
        self.keep_units(units)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return energies [n_graphs, 1], float64, and forces [n_atoms, 3] of a batch of graphs.

        Energies are in the store's unit of energy, such as eV, and forces in this unit per Å. If
        asked for, ``stress`` [n_graphs, 6] in this unit per Å³ is added, in Voigt order and with
        ASE's sign (see :func:`~hydragnn_flow.models.geometry.stress_of`), and so are the standard
        deviations of :class:`PotentialNoise`.

        During training gradients flow through all outputs. In evaluation mode, or with gradients
        switched off, outputs are detached. ``torch.inference_mode`` is not supported, because it
        forbids the gradient that gives the forces.
        """
        differentiable = self.training and torch.is_grad_enabled()
        branch = branch_of_graph(batch, self.n_branches)
        of_atom = None if branch is None else branch.index_select(0, batch.batch)
        with torch.enable_grad():
            positions = batch.pos.detach().to(self.dtype).requires_grad_(True)
            nodes, geometry = self.encoder(batch, positions)
            (raw,) = self.atomic_energy(nodes, geometry, of_atom)
            # Sums over atoms would lose digits in the bfloat16 of automatic mixed precision.
            raw = raw.to(positions.dtype)
            # The energy depends on positions through the edge vectors. Their gradient gives the
            # same forces as that of the positions, and the stress at hardly any cost. Some layers
            # also read the positions of graphs that are not periodic, and so have no stress.
            known = [geometry.vectors]
            if geometry.space is not None and geometry.space.any_finite:
                known.append(geometry.space.positions)
            gradient, *others = torch.autograd.grad(raw.sum(), known, create_graph=differentiable)
            interaction = sum_by(raw, geometry.graph, geometry.n_graphs)
            noise = {} if self.noise is None else self.noise(nodes, geometry, of_atom)
        if not differentiable:
            interaction = interaction.detach()
            noise = {name: values.detach() for name, values in noise.items()}
        scale = of_branch(unpack_exact(self.scale), branch)
        at_atoms = scale if branch is None else scale.index_select(0, geometry.graph)
        of_edge = scale if branch is None else at_atoms.index_select(0, geometry.sender)
        gradient = gradient * of_edge.to(gradient.dtype)
        forces = geometry.sum_at_sender(gradient).index_add_(
            0, geometry.receiver, gradient, alpha=-1
        )
        for other in others:
            forces = forces - other * at_atoms.to(gradient.dtype)
        outputs = {
            "energy": interaction.double() * scale + self.references(batch),
            "forces": forces,
            **noise,
            **self.levered(nodes, batch),
        }
        if self.stress:
            cell: Tensor = batch.cell  # type: ignore[attr-defined]  # a key that build_model saw
            outputs[STRESS] = stress_of(gradient, geometry, cell)
        return outputs
