"""`params` as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from zerocalc.counting import Counts
from zerocalc.render.console import columns, emit, labelled
from zerocalc.spec.model import Model
from zerocalc.units import format_count


def show(model: Model, counts: Counts) -> None:
    """Print a model's parameters by component."""
    shown: list[RenderableType] = [Text(f"{model.title or 'model'}: {counts.total:,} parameters ({format_count(counts.total)})", "bold")]
    table = columns("parameters", "share", first="component")
    for component, count in counts.components.items():
        if count:
            table.add_row(component, f"{count:,}", f"{100 * count / counts.total:.1f} %")
    if counts.adapters:
        table.add_row("adapters", f"{counts.adapters:,}", f"{100 * counts.adapters / counts.total:.2g} %")
    table.add_section()
    for label, count in (
        ("total", counts.total),
        ("trainable", counts.trainable),
        ("active per token", counts.active),
        ("largest leaf module", counts.largest_leaf),
        ("largest block", counts.largest_block),
    ):
        table.add_row(label, f"{count:,}", "")
    shown += ["", table]
    if counts.notes:
        shown += ["", labelled([("assumed", text) for text in counts.notes])]
    emit(*shown)
