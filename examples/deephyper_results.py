"""The best evaluations of DeepHyper as `search.enqueue`, with which a search begins.

python examples/deephyper_results.py CONFIG.yaml RESULTS.csv…

Write what it prints into CONFIG.yaml. A column `p:NAME` is every path of the space that ends with
`NAME`, as in the scripts of HydraGNN, which give all heads the same layers. Failed evaluations, and
values that the space or the network does not allow, are left out; objectives are not taken over,
since they are in other units. Tables joined with their headers, and those of old versions without
`p:`, are read too.
"""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import yaml

from hydragnn_flow import RunConfig, load_config
from hydragnn_flow.config.search_checks import completed
from hydragnn_flow.errors import InputError

MOST = 20
RENAMED = {"p:model_type": "p:mpnn_type"}  # HydraGNN's earlier name


def best(table: pd.DataFrame, config: RunConfig, objective: str) -> list[dict[str, Any]]:
    """Values of the best evaluations by their paths in the space, each once."""
    space, found = config.search.space, []
    columns = {path: "p:" + path.rpartition(".")[2] for path in space}
    names = [name for name in table.columns if f"p:{name}" in {*columns.values(), *RENAMED}]
    if objective not in table or not (names or any(str(name)[:2] == "p:" for name in table)):
        raise InputError(f"is no table of DeepHyper: its columns are {', '.join(table.columns)}")
    table = table.rename(columns={name: f"p:{name}" for name in names}).rename(columns=RENAMED)
    table = table[
        table[objective] != objective
    ].copy()  # a header in the middle makes all cells texts
    for name in table:
        numbers = pd.to_numeric(table[name], errors="coerce")
        if numbers.notna().equals(table[name].notna()):
            table[name] = numbers
    objectives = pd.to_numeric(table[objective], errors="coerce")
    worked = table[objectives.abs() < float("inf")]
    if worked.empty:
        raise InputError(f"has no evaluation that has worked: all {len(table)} failed")
    ranked = worked.assign(**{objective: objectives}).sort_values(objective, ascending=False)
    for row in ranked.to_dict("records"):
        values: dict[str, Any] = {}
        for path, column in columns.items():
            if not pd.isna(given := row.get(column)):  # a column with gaps has 8.0 for 8
                whole = isinstance(given, float) and given.is_integer()
                values[path] = int(given) if whole and space[path].contains(int(given)) else given
        values = {path: values[path] for path in completed(space, values) if path in values}
        try:
            config.network_with(completed(space, values))
        except InputError:
            continue
        if values and all(space[path].contains(of) for path, of in values.items()):
            found += [] if values in found else [values]
    if not found:
        lack = [name for name in columns.values() if name not in table]
        remedy = f"it has no column {', '.join(lack)}" if lack else "widen the space"
        raise InputError(
            f"has {len(worked)} evaluations that worked, none in search.space: {remedy}"
        )
    return found[:MOST]


if __name__ == "__main__":
    results = pd.concat([pd.read_csv(file) for file in sys.argv[2:]], ignore_index=True)
    try:
        chosen = best(results, load_config(sys.argv[1]), "objective")
    except InputError as error:
        sys.exit(f"{', '.join(sys.argv[2:])}: {error}")
    print(yaml.safe_dump({"search": {"enqueue": chosen}}, default_flow_style=None, width=1000))
