"""`presets` as text."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from zerocalc.render.console import columns, emit, labelled

FIGURES: dict[str, tuple[str, ...]] = {
    "models": ("family", "layers", "parameters", "active per token"),
    "gpus": (
        "usable_bytes",
        "bf16_dense_flops_per_second",
        "memory_bytes_per_second",
        "scale_up_bytes_per_second",
    ),
    "nodes": ("gpus", "gpu", "network_bytes_per_second"),
    "recipes": ("title",),
    "frameworks": ("title",),
    "implementations": ("title",),
    "losses": ("title",),
    "families": ("title",),
    "quantisations": ("title",),
    "papers": ("title",),
}
"""What a list shows of each preset."""

HEADINGS = {
    "usable_bytes": "usable",
    "bf16_dense_flops_per_second": "dense bf16",
    "memory_bytes_per_second": "HBM",
    "scale_up_bytes_per_second": "scale-up",
    "network_bytes_per_second": "network",
}


def show_kinds(names: dict[str, list[str]]) -> None:
    """Print the kinds and what each holds."""
    emit(
        labelled(
            [
                (kind, f"{len(found)}: {', '.join(found)}" if found else "none")
                for kind, found in names.items()
            ]
        )
    )


def show_names(kind: str, tables: dict[str, dict[str, Any]]) -> None:
    """Print the presets of a kind, a line each."""
    figures = FIGURES[kind]
    if figures == ("title",):
        emit(labelled([(name, str(table.get("title", ""))) for name, table in tables.items()]))
        return
    listing = columns(*(HEADINGS.get(figure, figure) for figure in figures), first=kind)
    for name, table in tables.items():
        listing.add_row(name, *(str(table.get(figure, "-")) for figure in figures))
    emit(listing)


def show_one(kind: str, name: str, table: dict[str, Any]) -> None:
    """Print one preset, every figure with its key, and the source."""
    shown: list[RenderableType] = [Text(f"{name} ({kind})", "bold")]
    plain = [(key, _words(value)) for key, value in table.items() if not isinstance(value, list)]
    shown.append(labelled(plain))
    for key, value in table.items():
        if isinstance(value, list):
            shown += [Text(f"{key}:", "bold"), *(Text(f"  {_words(item)}") for item in value)]
    emit(*shown)


def _words(value: Any, inner: bool = False) -> str:
    """A value in words: a table as its keys and values, tables and lists inside others in
    parentheses.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (dict, list)):
        return str(value)
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    text = ", ".join(f"{key} {_words(item, True)}".lstrip() for key, item in items)
    return f"({text})" if inner else text
