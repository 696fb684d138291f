"""Which structures an ensemble flags: of its test split few, of those outside its range most.

    python benchmarks/applicability.py runs/quickstart
    python benchmarks/applicability.py RUN_DIR ... --times 4

Of finished runs. Structures of the test split are compressed, expanded, cut into slabs and
clusters, lose atoms, gain an element or get atoms too close. Where EMT labelled the training data,
it labels these too, and the table says how many are flagged or inside their interval. Which kinds
are outside depends on the data: those of mlearn have vacancies and surfaces.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from ase import Atoms
from ase.calculators.emt import EMT
from ensemble_quality.outside import outside
from results import Cell, Number, Run, Table

from hydragnn_flow import Ensemble, GraphStore

MEASURES = [
    "benchmarks/applicability.py",
    "benchmarks/ensemble_quality/outside.py",
    "hydragnn_flow/ensemble",
]
_BASES = 200


def main(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.", exists=True)],
    times: Annotated[int, typer.Option(help="Structures of each kind.", min=1)] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="One structure of each kind.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Predict and print a table."""
    run = Run("applicability", MEASURES, ["ase", "torch"], quick=quick)
    details = [judged(path, 1 if quick else times) for path in runs]
    rows: list[list[Cell]] = [
        [
            one["run"],
            f"{one['test_flagged']} of {one['test']}",
            Number(100 * one["flagged"] / one["outside"], "%"),
            "" if one["held"] is None else Number(100 * one["held"] / one["outside"], "%"),
            f"{one['outside']}",
            ", ".join(f"{kind} ({n})" for kind, n in one["missed"].items()),
        ]
        for one in details
    ]
    columns = ("run", "test, flagged", "outside, flagged", "or inside the interval", "of", "missed")
    table = Table(columns, rows, "flags", "Structures flagged as unlike the training data")
    result = run.end([table], details=details, settings={"times": times})
    print(result.markdown())
    if json is not None:
        result.write(json)


def judged(run: Path, times: int) -> dict[str, Any]:
    """What a run's ensemble says of its test split, and of structures outside its range."""
    ensemble = Ensemble.load(run)
    store = GraphStore.open(run / "store.gs")
    test = ensemble.predict(store, split="testset").graphs["flagged"]
    bases = [_atoms(graph) for graph, _ in zip(store["testset"], range(_BASES), strict=False)]
    kinds, structures = zip(*outside(bases, np.random.default_rng(0), times), strict=True)
    table = ensemble.predict(list(structures)).graphs
    flagged = table["flagged"].to_numpy()
    labelled = ensemble.manifest.provenance.get("source", {}).get("format") == "emt_alloys"
    held = flagged.copy()
    for i in np.flatnonzero(~flagged) if labelled else ():
        energy = _emt(structures[i])
        held[i] = table["energy_lo"][i] <= energy <= table["energy_hi"][i]
    return {
        "run": run.name,
        "test": len(test),
        "test_flagged": int(test.sum()),
        "outside": len(flagged),
        "flagged": int(flagged.sum()),
        "held": int(held.sum()) if labelled else None,
        "missed": dict(
            Counter(kind for kind, is_held in zip(kinds, held, strict=True) if not is_held)
        ),
    }


def _atoms(graph: Any) -> Atoms:
    return Atoms(
        graph.x[:, 0].int().tolist(),
        graph.pos.double().numpy(),
        cell=graph.cell.double().numpy(),
        pbc=graph.pbc.bool().tolist(),
    )


def _emt(atoms: Any) -> float:
    make_calculator: Any = EMT  # ASE has no types for it
    atoms.calc = make_calculator()
    return float(atoms.get_potential_energy())


if __name__ == "__main__":
    typer.run(main)
