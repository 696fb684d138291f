"""Write tables of the documentation from the code: ``make docs``.

The text between ``<!-- table: NAME -->`` and ``<!-- end -->`` is generated: types, defaults and
the docstrings of the fields. The rest of the pages is written by hand.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network import Architecture, EngineNetwork, HydraNetwork
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, REFUSED
from hydragnn_flow.config.network.load import EngineArchitecture
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, READ_BY
from hydragnn_flow.config.objective import ObjectiveSearch
from hydragnn_flow.config.optuna_classes import SAMPLERS
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.config.run import EnsembleConfig, ResourcesConfig
from hydragnn_flow.config.search import (
    Parameter,
    SearchConfig,
    TrainingBudget,
)
from hydragnn_flow.config.sources import FORMATS, Role, section_class
from hydragnn_flow.data.layouts import layouts
from hydragnn_flow.execution.site import NodeOptions, Options, about_site, shipped_sites

PAGES = [
    Path(__file__).parent / f"{name}.md"
    for name in ("configuration", "data", "how-to/any-objective", "models", "search", "sites")
]
# Every key HydraGNN reads, by section.
READ_BY_HYDRAGNN: dict[str, str] = {
    "Architecture": """
        mpnn_type hidden_dim num_conv_layers max_neighbours output_heads task_weights
        periodic_boundary_conditions
        radius edge_features equivariance radial_type distance_transform num_gaussians num_filters
        envelope_exponent num_after_skip num_before_skip basis_emb_size int_emb_size out_emb_size
        num_radial num_spherical max_ell node_max_ell correlation
        global_attn_engine global_attn_type global_attn_heads pe_dim
        equivariant_attn_lmax equivariant_attn_num_radial equivariant_attn_feedforward_multiplier
        equivariant_attn_allow_scalar_only equivariant_attn_require_tensor_coupling
        equivariant_attn_chunk_size equivariant_attn_coupling_mode
        activation_function graph_pooling enable_interatomic_potential energy_weight
        energy_peratom_weight force_weight freeze_conv_layers initial_bias SyncBatchNorm
        use_graph_attr_conditioning graph_attr_conditioning_mode
        input_dim output_dim output_type num_nodes edge_dim pna_deg avg_num_neighbors
    """,
    "Architecture.output_heads": "graph node",
    "Architecture.output_heads.graph": """
        num_sharedlayers dim_sharedlayers num_headlayers dim_headlayers
    """,
    "Architecture.output_heads.node": "num_headlayers dim_headlayers type",
    "Variables_of_interest": """
        input_node_features output_names output_index type output_dim denormalize_output
        minmax_node_feature minmax_graph_feature x_minmax y_minmax subsample_percentage
        graph_feature_names graph_feature_dims node_feature_names node_feature_dims
        input_node_feature_dims
    """,
    "Training": """
        num_epoch batch_size perc_train Optimizer loss_function_type EarlyStopping patience
        Checkpoint checkpoint_warmup CheckRemainingTime continue startfrom epoch_start
        conv_checkpointing precision global_attn_redraw_interval Batching
    """,
    "Training.Optimizer": "type learning_rate use_zero_redundancy",
    "Training.Batching": "mode max_nodes max_graphs shuffle seed oversized_sample drop_last",
}
_TRAINING = ("Optimizer", "Batching")
_NOTHING = "remove the key"
_SENSELESS = 1000  # larger limits only catch typing errors
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES = {int: "integer", float: "number", str: "text", Path: "path"}


def main() -> None:
    """Bring the pages up to date."""
    for page in PAGES:
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


def render(page: str) -> str:
    """A page with its tables made anew."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{_TABLES[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- table: (\w+) -->)\n.*?(<!-- end -->)", table, page, flags=re.DOTALL)


def network() -> str:
    """A table for each section of `NeuralNetwork`."""
    tables: list[str] = []
    for path, section in _sections(HydraNetwork, ""):
        if path in ("", "Architecture.statistics"):  # nobody writes statistics
            continue
        known = frozenset(READ_BY_HYDRAGNN.get(path, "").split())
        rows = _rows(section, known).splitlines()
        if path == "Architecture.output_heads.node":  # what both kinds of heads have stands once
            common = [row for row in rows[2:] if row in tables[-1]]
            names = " and ".join(row.split()[1] for row in common)
            rows = [*rows[:2], *(row for row in rows[2:] if row not in common)]
            rows += ["", f"{names} are as for `graph`."]
        table = "\n".join(rows)
        tables.append(f"#### `{path}`\n\n{table}")
    return "\n\n".join(tables)


def engine() -> str:
    """Keys of a network that an engine builds, which others do not have."""
    rows = [
        _row("engine", EngineNetwork.model_fields["engine"]).replace("| required |", "| – |"),
        _row("Architecture.branches", EngineArchitecture.model_fields["branches"]),
    ]
    return _table("key | values | default | meaning", rows)


def objective() -> str:
    """Keys of a search that calls a function, which others do not have."""
    rows = [
        _row(key, ObjectiveSearch.model_fields[key])
        for key in inspect.get_annotations(ObjectiveSearch)
    ]
    return _table("key of `search` | values | default | meaning", rows)


def ignored() -> str:
    """Keys of HydraGNN's that change nothing, those with the same reason in one row."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for section, keys in IGNORED.items():
        for key, why in keys.items():
            reasons.setdefault((section, why), []).append(f"`{key}`")
    rows = [
        f"| `{_path(section)}` | {', '.join(keys)} | {why} |"
        for (section, why), keys in reasons.items()
    ]
    return _table("section | keys | why", rows)


def refused() -> str:
    """Keys of HydraGNN's that may only be switched off."""
    rows = [
        f"| `{_path(section)}.{key}` | {why} | {'–' if remedy == _NOTHING else remedy} |"
        for section, keys in REFUSED.items()
        for key, (why, remedy) in keys.items()
    ]
    return _table("key | why | instead", rows)


def formats() -> str:
    """Formats of `data.source`."""
    sections = {name: section_class(name) for name in FORMATS}
    rows = [
        f"| [`{name}`](#{name}) | {section.reads} | {section.labels} |"
        for name, section in sections.items()
    ]
    return _table("`source.format` | reads | targets are", rows)


def layout_rows() -> str:
    """Layouts of published data sets, with the units of their labels."""
    rows = []
    for name, layout in layouts().items():
        units = dict.fromkeys(known.unit for known in layout.labels.values())
        rows.append(f"| {name} | {layout.files} | {', '.join(units)} |")
    return _table("layout | files | units", rows)


def source_keys() -> str:
    """Keys of `data.source`; equal ones of several formats are in one row."""
    rows: dict[str, list[str]] = {}
    for name in FORMATS:
        for key, field in section_class(name).model_fields.items():
            # The page describes files of structures once, for all formats.
            if key not in ("format", *get_args(Role)):
                rows.setdefault(_row(key, field), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} {row}" for row, names in rows.items()]
    return _table("formats | key | values | default | meaning", lines)


def message_passing() -> str:
    """Message-passing types: what their layers do and which keys they read."""
    rows = [
        f"| `{name}` | {kind.layer} | {kind.source} | "
        f"{', '.join(f'`{key}`' for key in kind.properties.keys) or '–'} |"
        for name, kind in MPNN_TYPES.items()
    ]
    return _table("type | what a layer does | source | keys", rows)


def properties() -> str:
    """Message-passing types: what they guarantee."""
    words: dict[object, str] = {"request": "on request", True: "yes", False: "no"}
    rows = []
    for name, kind in MPNN_TYPES.items():
        guaranteed = kind.properties
        cells = [
            guaranteed.lengths,
            guaranteed.lengths != "never",
            guaranteed.edge_attributes,
            guaranteed.sees_angles,
            guaranteed.vectors,
            guaranteed.continuous_at_cutoff,
            guaranteed.smooth_forces,
        ]
        said = " | ".join(words.get(cell, str(cell)) for cell in cells)
        rows.append(f"| `{name}` | {said} |")
    return _table(
        "type | lengths | potential | edge attributes | angles | vectors | continuous energy | "
        "smooth forces",
        rows,
    )


def samplers() -> str:
    """The samplers that have a short name."""
    rows = [
        f"| `{name}`{' (default)' if name == SearchConfig.model_fields['sampler'].default else ''} "
        f"| {sampler.about} |"
        for name, sampler in SAMPLERS.items()
    ]
    return _table("`sampler` |", rows)


def sites() -> str:
    """A row for each site file that ships with the package, from its docstring and example."""
    rows = []
    for name in shipped_sites():
        about, example = about_site(name)
        needs = ", ".join(f"`{key}`" for key in sorted(example.model_fields_set))
        rows.append(f"| `{name}` | {about.rstrip('.')} | {needs or 'nothing'} |")
    return _table("site | machine | needs", rows)


def _table(head: str, rows: Iterable[str]) -> str:
    """A table of Markdown: column names between bars, and whole rows."""
    rule = "|" + "---|" * (head.count("|") + 1)
    return "\n".join([f"| {head} |", rule, *rows])


def _path(section: str) -> str:
    return f"Training.{section}" if section in _TRAINING else section


_TABLES: dict[str, Callable[[], str]] = {
    "network": network,
    "objective": objective,
    "types": message_passing,
    "properties": properties,
    "engine": engine,
    "ignored": ignored,
    "refused": refused,
    "samplers": samplers,
    "search": lambda: _rows(SearchConfig),
    "domain": lambda: _rows(Parameter),
    "budget": lambda: _rows(TrainingBudget),
    "ensemble": lambda: _rows(EnsembleConfig),
    "resources": lambda: _rows(ResourcesConfig),
    "start_from": lambda: _rows(StartConfig),
    "formats": formats,
    "layouts": layout_rows,
    "source_keys": source_keys,
    "sites": sites,
    "options": lambda: _rows(Options),
    "node": lambda: _rows(NodeOptions),
}


def _sections(section: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    """A section and those inside it, by dotted path."""
    yield path, section
    for key, field in section.model_fields.items():
        for inner in _inside(field.annotation):
            yield from _sections(inner, f"{path}.{key}".lstrip("."))


def _inside(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) is not dict:
        for inner in get_args(annotation):
            yield from _inside(inner)


def _rows(section: type[Section], hydragnns: frozenset[str] | None = None) -> str:
    """The table of one section; with HydraGNN's keys, a column tells them from ours."""
    rows = []
    fields = list(section.model_fields.items())
    if section is Architecture:  # the keys that say what the network is come first
        own = inspect.get_annotations(section)
        fields.sort(key=lambda item: item[0] not in own)
    for key, field in fields:
        ours = "" if hydragnns is None or key in hydragnns else " *Ours.*"
        read_by = READ_BY.get(key, ()) if section is Architecture else ()
        rows.append(_row(key, field, f" *{', '.join(read_by)}.*{ours}" if read_by else ours))
    if all(_default(field) == "–" for _, field in fields):  # sites have their own
        return _table("key | values | meaning", [row.replace(" | – | ", " | ", 1) for row in rows])
    return _table("key | values | default | meaning", rows)


def _row(key: str, field: FieldInfo, ours: str = "") -> str:
    inside = "See below." if list(_inside(field.annotation)) else ""
    meaning = " ".join((field.description or inside).split()).replace("``", "`")
    values = _values(field.annotation, field.metadata)
    if field.examples:
        values = ", ".join(f"`{name}`" for name in field.examples) + f", or {values}"
    return f"| `{key}` | {values} | {_default(field)} | {meaning}{ours} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, {}):
        return "–"
    if isinstance(field.default, Section):
        return "its defaults"
    plain = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{plain if isinstance(plain, str) else json.dumps(plain)}`"


def _values(annotation: Any, metadata: list[Any]) -> str:
    """Values that a key may have, in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(inside[0], [*metadata, *inside[1:]])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin in (Union, types.UnionType):
        given = [kind for kind in inside if kind is not type(None)]
        if bool in given:  # any plain value
            return "number, text, `true` or `false`"
        return " or ".join(_values(kind, metadata) for kind in given)
    if origin is tuple:
        if isinstance(inside[0], type) and issubclass(inside[0], Section):
            return "section, or list of branches"
        if inside[-1] is not Ellipsis:
            return f"[{', '.join(_values(kind, metadata) for kind in inside)}]"
        return f"list of: {_values(inside[0], [])}"
    if annotation is bool:
        return "`true`, `false`"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    bounds = {
        name: _number(getattr(limit, name))
        for limit in _limits(metadata)
        for name in _SIGNS
        if hasattr(limit, name) and getattr(limit, name) < _SENSELESS
    }
    if bounds.keys() == {"ge", "le"}:
        return f"{_NAMES[annotation]}, {bounds['ge']} to {bounds['le']}"
    return _NAMES[annotation] + " and".join(f" {_SIGNS[name]} {n}" for name, n in bounds.items())


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _limits(metadata: list[Any]) -> Iterator[Any]:
    """Bounds, those inside a `Field` of an annotation included."""
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


if __name__ == "__main__":
    main()
