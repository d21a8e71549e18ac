"""The console that everything is printed to, and the pieces that several views share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Span, Text

from zerocalc.render.plain import plain_for, shows
from zerocalc.results import Moment

SHORT_MOMENT: dict[Moment, str] = {
    "load": "load",
    "forward": "forward",
    "loss": "loss",
    "backward_start": "bwd start",
    "backward_end": "bwd end",
    "step": "step",
}
"""Moments as a narrow column shows them."""

WIDEST = 120
"""A table wider than this is hard to read across."""
UNBOUNDED = 10_000
BELOW_LABEL = 2
"""Indentation of cells that are printed below their row's label."""
BACKGROUND = frozenset({"assumed", "symbols", "sources"})
"""The background of an answer, printed dim."""
NARROWEST = 20
"""The smallest width in which a figure and a word fit on one line; smaller ones are ignored."""


class Lines(Console):
    """A console that draws the same lines in every encoding: what the stream lacks is spelled
    plainly when it is written.
    """

    @property
    def encoding(self) -> str:
        """That of the text before it is written."""
        return "utf-8"


def console() -> Console:
    """A console on today's stdout; 80 columns unless a terminal is wider, colours only where it is
    one.
    """
    made = Lines(
        file=sys.stdout, highlight=False, markup=False, emoji=False, _environ=_usable(os.environ)
    )
    if made.width < NARROWEST:
        made.width = 80
    made.width = min(made.width, WIDEST)
    return made


def _usable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without sizes of the terminal that are none: nothing can be printed in 0
    columns.
    """

    def usable(name: str, value: str) -> bool:
        if name not in ("COLUMNS", "LINES"):
            return True
        return (
            value.isascii()
            and value.isdigit()
            and len(value) < 7
            and (name == "LINES" or int(value) >= NARROWEST)
        )

    return {name: value for name, value in environment.items() if usable(name, value)}


def emit(*renderables: RenderableType) -> None:
    """Print, without the spaces that rich pads lines with where no terminal needs them."""
    out = console()
    items = [plainly(item) for item in renderables]
    if out.is_terminal:
        _print(out, items)
        return
    with out.capture() as captured:
        _print(out, items)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print(out: Console, items: list[Any]) -> None:
    for item in items:
        for part in _fitting(out, item):
            out.print(part)


def _fitting(out: Console, item: Any) -> list[Any]:
    """An item as it is, or line by line where the terminal is too narrow for a table: broken, its
    figures would read as others.
    """
    if isinstance(item, Group):
        return [fitting for part in item.renderables for fitting in _fitting(out, part)]
    if isinstance(item, Table) and _least(out, item) > out.width:
        return _line_by_line(item)
    return [item]


def _line_by_line(table: Table) -> list[Any]:
    """Each row's label, and below it each of its other cells behind its column's heading."""
    columns: list[Any] = table.columns
    first, *others = columns
    lines: list[Any] = (
        [Text.assemble(first.header, style=table.header_style)] if first.header else []
    )
    for row, label, *cells in zip(
        table.rows, first.cells, *(column.cells for column in others), strict=True
    ):
        if label or not any(cells):
            lines.append(Text.assemble(label, style=row.style or first.style))
        for column, cell in zip(others, cells, strict=True):
            if cell:
                named = Text.assemble(
                    column.header,
                    " " if column.header else "",
                    cell,
                    style=row.style or column.style,
                )
                lines.append(Padding(named, (0, 0, 0, BELOW_LABEL)))
    return lines


def _least(out: Console, table: Table) -> int:
    """The width below which a table's figures, or words of its labels and notes, would be
    broken.
    """
    options = out.options.update(width=UNBOUNDED)
    spare = 0
    for column in table.columns:
        measured = [Measurement.get(out, options, cell) for cell in (column.header, *column.cells)]
        indents = [
            len(cell.plain) - len(cell.plain.lstrip())
            for cell in column.cells
            if isinstance(cell, Text)
        ]
        needs = max(size.minimum for size in measured) + max(indents, default=0)
        spare += 0 if column.no_wrap else max(0, max(size.maximum for size in measured) - needs)
    return Measurement.get(out, options, table).maximum - spare


def plainly(item: Any) -> Any:
    """A text as stdout's encoding can show it, before it is laid out: ``Psi`` is wider than ``Ψ``.
    Tables see to their own cells.
    """
    encoding = getattr(sys.stdout, "encoding", None)
    if isinstance(item, str):
        return plain_for(item, encoding)
    if isinstance(item, Group):
        return Group(*(plainly(part) for part in item.renderables))
    if isinstance(item, Padding):
        return Padding(plainly(item.renderable), (item.top, item.right, item.bottom, item.left))
    if not isinstance(item, Text) or shows(item.plain, encoding):
        return item
    out = item.blank_copy()
    for letter in item.divide(range(1, len(item))):
        spelled = plain_for(letter.plain, encoding)
        out.append_text(
            Text(spelled, spans=[Span(0, len(spelled), span.style) for span in letter.spans])
        )
    return out


class Grid(Table):
    """A table whose texts are as stdout can show them."""

    def add_column(self, header: RenderableType = "", *args: Any, **settings: Any) -> None:
        """Add a column."""
        super().add_column(plainly(header), *args, **settings)

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """Add a row."""
        super().add_row(*(plainly(cell) for cell in cells), **settings)


def columns(*headings: str, first: str = "") -> Table:
    """A table without lines: a first column of labels, then right-aligned figures."""
    table = Grid(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold"
    )
    table.add_column(first, justify="left", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def labelled(rows: list[tuple[str, str]]) -> Table:
    """Labels, each followed by wrapped text."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    previous = None
    for label, text in rows:
        grid.add_row(
            "" if label == previous else f"{label}:",
            Text(text, "dim" if label in BACKGROUND else ""),
        )
        previous = label
    return grid
