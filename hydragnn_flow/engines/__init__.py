"""Engines: external libraries that build networks, which are trained like this package's own.

A network of another package competes with ours under the same search, training and data.
``network.engine`` names the engine: ``hydragnn``, or ``module:build``, a function or class of
yours::

    def build(network: Mapping[str, Any], manifest: Manifest) -> torch.nn.Module:
        return MyNetwork(network["Architecture"]["width"], len(manifest.elements))

    build.options = MyKeys  # optional: a Section that checks your keys of `Architecture`

``network`` is the checked `NeuralNetwork` section as plain values, with your own keys in
`Architecture`; keys that were not given are absent. ``manifest`` describes the store: targets,
elements, cutoff, and statistics of the training split. Draw weights from torch's global random
numbers, which are already seeded.

The module is called with a PyG batch without labels, in the precision of the module's weights. It
returns a dict from output name to tensor:

- without ``enable_interatomic_potential``, each of `Variables_of_interest.output_names`, as
  [n_graphs, d] or [n_atoms, d], in units of the target's spread from its mean over the training
  split. With the loss `GaussianNLLLoss` also ``<name>_aleatoric_std`` of the same shape, a number
  of any sign, whose softplus is the standard deviation of the noise in that unit;
- with it, ``energy`` [n_graphs, 1], computed from ``batch.pos`` and ``batch.edge_shifts``, in units
  of `statistics.forces_rms` (without forces, of `energy_per_atom_std`) above the sum of the
  elements' energies. Forces and stress are computed around the module as its gradients. A module
  that predicts ``forces`` [n_atoms, 3] directly returns them in the same unit per Å.

Some commands and keys need more of the module:

- ``hydragnn-flow select``, and error bars that grow far from the training data, need a method
  ``node_features(batch)``, which returns [n_atoms, k]. It is called once for each prediction;
- `start_from` needs a method ``read_weights(file)``. It returns the weights in a file by their
  names in the module's state dict. With these weights the module's outputs have to be in the data's
  units, with no mean or reference energies subtracted;
- `start_from` with new heads also needs ``head_names``, the names of the modules that are heads.

:mod:`hydragnn_flow.testing.engines` has pytest suites that test an engine.
"""
