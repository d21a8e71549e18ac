"""`params` as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from zerocalc.counts import Counts, StoredBytes
from zerocalc.quantities import format_count
from zerocalc.render.console import columns, emit, labelled
from zerocalc.results import Model

PARTS = ("weights", "scales", "zero_points", "indices", "codebooks")


def show(model: Model, counts: Counts) -> None:
    """Print a model's parameters by component."""
    shown: list[RenderableType] = [
        Text(
            f"{model.title or 'model'}: {counts.total:,} parameters ({format_count(counts.total)})",
            "bold",
        )
    ]
    kept = counts.stored
    table = columns("parameters", "share", "stored bytes", first="component")
    for component, count in counts.components.items():
        if count:
            table.add_row(
                component,
                f"{count:,}",
                f"{100 * count / counts.total:.1f} %",
                f"{kept.components[component]:,}" if kept else "unknown",
            )
    if counts.adapters:
        table.add_row(
            "adapters",
            f"{counts.adapters:,}",
            f"{100 * counts.adapters / counts.total:.2g} %",
            f"{kept.adapters:,}" if kept else "unknown",
        )
    table.add_section()
    for label, count in (
        ("total", counts.total),
        ("trainable", counts.trainable),
        ("active per token", counts.active),
        ("largest leaf module", counts.largest_leaf),
        ("largest block", counts.largest_block),
    ):
        table.add_row(
            label,
            f"{count:,}",
            "",
            f"{counts.stored_bytes:,}"
            if label == "total" and counts.stored_bytes is not None
            else "",
        )
    shown += ["", table]
    if kept is not None and model.quantised is not None:
        shown += ["", _quantised(model.quantised.title or kept.format, kept)]
    if counts.notes:
        shown += ["", labelled([("assumed", text) for text in counts.notes])]
    emit(*shown)


def _quantised(title: str, kept: StoredBytes) -> RenderableType:
    """The bytes of quantised tensors by what they are for, and of those kept as they were."""
    rows = [
        (f"quantised {part}" if part == "weights" else part.replace("_", " "), size)
        for part in PARTS
        if (size := getattr(kept, part))
    ]
    table = columns("bytes", first=title)
    for label, size in (*rows, (f"not quantised ({kept.dtype})", kept.not_quantised)):
        table.add_row(label, f"{size:,}")
    return table
