"""First configuration for inspected data: commented YAML, and a network in JSON."""

from __future__ import annotations

import glob
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from hydragnn_flow.config.network.hydragnn_keys import DEFAULT_WEIGHTS
from hydragnn_flow.config.run import resolve_config
from hydragnn_flow.config.sources import DIVIDED_BY_ATOMS
from hydragnn_flow.config.units import is_slope
from hydragnn_flow.data.found_labels import REFERENCES, UNIT_AT_END, Label, quantity_of
from hydragnn_flow.data.looking import Finding
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_text

# Fewest structures of a split for usable intervals and errors.
_FEWEST = 12
_LARGEST_FRACTION = 0.3
_EPOCHS = (6, 60)

_BY_ATOM = re.compile(rf"(per|/)[\W_]*atom|{DIVIDED_BY_ATOMS}", re.IGNORECASE)
_TOTAL = {"energy", "total", "potential", "free", *REFERENCES}
"""Words in the names of energies of whole structures."""


@dataclass(frozen=True)
class FirstConfig:
    """First configuration for a user's data: texts of its YAML and JSON file, and main choices."""

    name: str
    text: str
    """YAML text of the configuration."""
    network: dict[str, Any]
    targets: list[Label]
    """Labels that the network learns, such as energy and forces."""
    others: list[Label]
    """Labels that it could learn too."""
    trials: int
    members: int

    @property
    def is_potential(self) -> bool:
        """True if the network learns energies and forces together."""
        architecture = self.network["NeuralNetwork"]["Architecture"]
        return bool(architecture.get("enable_interatomic_potential", False))

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the paths of the YAML and the JSON file in a folder."""
        return folder / f"{self.name}.yaml", folder / f"{self.name}.json"

    def write(self, folder: Path) -> None:
        """Write both files in a folder, over those that are there."""
        written, network = self.files(folder)
        write_text(network, json.dumps(self.network, indent=2) + "\n")
        write_text(written, self.text)


def first_config(
    finding: Finding,
    name: str,
    folder: Path,
    gcds: int,
    *,
    trials: int | None = None,
    members: int | None = None,
    epochs: int | None = None,
) -> FirstConfig:
    """Make a first configuration for inspected data, which `hydragnn-flow run` accepts as it is.

    Parameters
    ----------
    finding
        Description of the inspected data.
    name
        Name of the run, and of the two files without their suffixes.
    folder
        Folder for the two files.
    gcds
        Number of devices, or cores, of this machine.
    trials, members, epochs
        Numbers of trials, members, and epochs of a whole trial; None to choose them.

    Raises
    ------
    InputError
        If there are too few structures, or the files would match the data's patterns.
    """
    name = name.removesuffix(".gs").removesuffix(".bp")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "run"
    _check_apart(finding, name, folder)
    targets = _chosen(finding)
    potential = len(targets) > 1
    learnt = {label.key for label in targets}
    others = [label for label in finding.labels if label.key not in learnt]
    train = finding.sizes["train"]
    split = _fractions(finding)
    train -= sum(math.ceil(fraction * train) for fraction in split.values())
    seen = train * finding.atoms[1]
    # A trial trains on 250,000 atoms, in some minutes on a core for networks of this size.
    if epochs is None:
        epochs = round(min(max(250_000 / seen, _EPOCHS[0]), _EPOCHS[1]))
    # An epoch has 40 steps, or at least 15: a step with fewer than 128 atoms takes as long.
    batch = max(train / 40, min(128 / finding.atoms[1], train / 15))
    batch = 2 ** round(math.log2(min(max(batch, 2), 32)))
    network = _network(finding, targets, potential, epochs, batch)
    trials = max(16, min(2 * gcds, 256)) if trials is None else trials
    members = (4 if gcds >= 4 else 3) if members is None else members
    path = os.path.relpath(finding.folder, folder)
    pages = Environment(
        loader=PackageLoader("hydragnn_flow.campaign", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"plain": _plain, "noted": _noted, "target": _target}
    text = pages.get_template("first_config.yaml.j2").render(
        name=name,
        finding=finding,
        atoms=atoms_told(finding),
        # Relative where both can be moved together.
        path=finding.folder.as_posix() if path.startswith("..") else path,
        targets=targets,
        others=others,
        split=split,
        types="PAINN, SchNet, EGNN" if potential else "PNA, SchNet, EGNN",
        batches=", ".join(str(size) for size in sorted({max(1, batch // 2), batch, 2 * batch})),
        trials=trials,
        members=members,
        epochs=epochs,
    )
    values = yaml.safe_load(text) | {"network": network["NeuralNetwork"]}
    resolve_config(values, folder / f"{name}.yaml")  # checks that `run` accepts it
    return FirstConfig(name, text, network, targets, others, trials, members)


def write_config(config: FirstConfig, folder: Path) -> tuple[Path, Path]:
    """Write the YAML and the JSON file of a first configuration; return their paths.

    Raises
    ------
    InputError
        If one of the files exists; nothing is overwritten.
    """
    files = config.files(folder)
    for file in files:
        if os.path.lexists(file):
            raise InputError(
                f"{file}: exists already and is not overwritten; delete it, or work in another "
                f"directory"
            )
    config.write(folder)
    return files


def _check_apart(finding: Finding, name: str, folder: Path) -> None:
    """Refuse a folder in which a file pattern of the data would match one of the new files.

    ``name`` is the name of the new files without suffix.
    """
    if folder.resolve() != finding.folder.resolve():
        return
    for role in finding.sizes:
        pattern = str(finding.source.get(role, ""))
        for file in (f"{name}.yaml", f"{name}.json"):
            if glob.has_magic(pattern) and fnmatchcase(file, pattern):
                raise InputError(
                    f"{folder}: {file} would be taken for data here, as data.source.{role} is "
                    f"{pattern}; give the command in another directory"
                )


def _chosen(finding: Finding) -> list[Label]:
    """Choose labels to learn: energy, forces and stress of one method, or else one label.

    That is an energy, or else the first label of structures that has other than whole numbers.

    Raises
    ------
    InputError
        If an energy that would be learnt is unusable, or there are forces or stresses only.
    """
    usable: dict[tuple[str, str], Label] = {}
    for label in sorted(finding.labels, key=lambda label: "total" in label.key.lower()):
        if label.quantity and not _is_per_atom(label):
            usable.setdefault(quantity_of(label.key), label)
    unusable = {quantity_of(key): key for key in finding.unusable}
    methods = dict.fromkeys(method for _, method in (*usable, *unusable))
    known = [method for method in ("", *sorted(REFERENCES)) if method in methods]
    # Those of other methods are perhaps the predictions of a model.
    for some in (known, [method for method in methods if method not in known]):
        some.sort(key=lambda method: not {("forces", method)} & {*usable, *unusable})
        for method in some:
            energy, forces = usable.get(("energy", method)), usable.get(("forces", method))
            key = unusable.get(("energy", method))
            if energy is None and key and (forces or method in known):
                raise InputError(
                    f"{finding.folder}: the energy {key!r} cannot be learnt "
                    f"({finding.unusable[key]}); correct it, or leave out the structures without"
                )
            if energy and (forces or _is_total(energy)):
                stress = usable.get(("stress", method)) if forces else None
                fits = (
                    stress and not stress.lacking and finding.have_cells and _fits(stress, energy)
                )
                chosen = (energy, forces, stress if fits else None)
                return [replace(label, name=label.quantity) for label in chosen if label]
    others = [label for label in finding.labels if label.quantity not in ("forces", "stress")]
    if not others:
        raise InputError(
            f"{finding.folder}: has {', '.join(label.key for label in finding.labels)} and no "
            "energy whose slopes they are; add one, or write a configuration by hand"
        )
    others.sort(key=lambda one: (one.quantity != "energy", one.level, one.doubtful, one.lacking))
    return others[:1]


def _fits(stress: Label, energy: Label) -> bool:
    """Return whether a potential can learn a stress in its unit; both or none must be known."""
    is_known = bool(stress.unit) == bool(energy.unit)
    return is_known and is_slope(stress.unit, energy.unit, by_volume=True)


def _is_per_atom(label: Label) -> bool:
    return bool(_BY_ATOM.search(label.key) or "atom" in label.unit)


def _is_total(label: Label) -> bool:
    """Return whether a label's name can only mean a sum over atoms.

    Other energies are often per atom or per site.
    """
    words = set(UNIT_AT_END.sub("", label.name).lower().split("_"))
    return "energy" in words and words <= _TOTAL


def _fractions(finding: Finding) -> dict[str, float]:
    """Return fractions of the training files for roles without files, such as `val` and `test`."""
    n = finding.sizes["train"]
    needed = [role for role in ("val", "test") if role not in finding.sizes]
    if finding.sizes.get("val", _FEWEST) < _FEWEST and "calibration" not in finding.sizes:
        needed.append("calibration")
    if not needed:
        return {}
    wanted = 0.1 if n >= 1000 else 0.15
    fraction = math.ceil(100 * max(wanted, _FEWEST / n)) / 100
    if fraction > _LARGEST_FRACTION:
        raise InputError(
            f"{finding.folder}: holds {n} labelled structures, and fewer than "
            f"{math.ceil(_FEWEST / _LARGEST_FRACTION)} cannot train, calibrate and test an "
            f"ensemble; add some"
        )
    return dict.fromkeys(needed, fraction)


def _network(
    finding: Finding, targets: Sequence[Label], potential: bool, epochs: int, batch: int
) -> dict[str, Any]:
    architecture: dict[str, Any] = {
        "mpnn_type": "PAINN" if potential else "PNA",
        "hidden_dim": 64,
        "num_conv_layers": 3,
        "radius": finding.radius,
        "num_radial" if potential else "num_gaussians": 20 if potential else 32,
        "activation_function": "silu",
    }
    loss: dict[str, Any] = {}
    if potential:
        architecture |= {
            "enable_interatomic_potential": True,
            **DEFAULT_WEIGHTS,
            **({"stress_weight": 0.1} if "stress" in {label.name for label in targets} else {}),
            "output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [64], "type": "mlp"}},
        }
        if finding.edges_are_cut:
            architecture["truncated_neighbours"] = "allow"
        names, levels = ["energy"], ["node"]
    else:
        (target,) = targets
        names, levels = [target.name], [target.level]
        total = target.name == "energy" and "atom" not in target.unit
        layers: dict[str, Any] = {"num_headlayers": 2, "dim_headlayers": [64, 32]}
        head = {
            "graph": {"graph": {"num_sharedlayers": 1, "dim_sharedlayers": 64, **layers}},
            "node": {"node": {**layers, "type": "mlp"}},
        }
        architecture |= {
            "edge_features": ["lengths"],
            "graph_pooling": "add" if total else "mean",
            "output_heads": head[target.level],
            "task_weights": [1.0],
        }
        # Heads that predict their noise erred less on perov_5, and their uncertainties were better.
        loss = {} if target.classes else {"loss_function_type": "GaussianNLLLoss", "nll_beta": 0.5}
    return {
        "NeuralNetwork": {
            "Architecture": architecture,
            "Variables_of_interest": {
                "input_node_features": finding.node_features,
                "output_names": names,
                "type": levels,
            },
            "Training": {
                "num_epoch": epochs,
                "batch_size": batch,
                **loss,
                "Optimizer": {"type": "Muon", "learning_rate": 0.005},
            },
        }
    }


def atoms_told(finding: Finding) -> str:
    """Describe in words how many atoms the inspected structures have."""
    lowest, mean, highest = finding.atoms
    if lowest == highest:
        return f"{lowest} atoms each"
    return f"{lowest} to {highest} atoms, {mean:.1f} on average"


def _noted(text: str, comment: str) -> str:
    return f"{text:<36} # {comment}"


def _target(label: Label) -> str:
    known: dict[str, Any] = {"classes": [*label.classes]} if label.classes else {"unit": label.unit}
    known |= {"key": label.key} if label.key != label.name else {}
    known |= {"level": label.level} if label.say_level else {}
    return f"{label.name}: {_plain(known)}"


def _plain(value: Any) -> str:
    """Format a value in one line of YAML."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return dumped.removesuffix("...\n").strip()
