"""The console that everything is printed to, and the pieces that several views share."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from zerocalc.ledger import Moment

SHORT_MOMENT: dict[Moment, str] = {
    "load": "load", "forward": "forward", "loss": "loss", "backward_start": "bwd start", "backward_end": "bwd end", "step": "step",
}  # fmt: skip
"""Moments as a narrow column shows them."""

WIDEST = 120
"""A table wider than this is hard to read across."""


def console() -> Console:
    """A console on today's stdout; 80 columns unless a terminal is wider, colours only where it is one."""
    made = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    made.width = min(made.width, WIDEST)
    return made


def emit(*renderables: RenderableType) -> None:
    """Print, without the spaces that rich pads lines with where no terminal needs them."""
    out = console()
    if out.is_terminal:
        for item in renderables:
            out.print(item)
        return
    with out.capture() as captured:
        for item in renderables:
            out.print(item)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def columns(*headings: str, first: str = "") -> Table:
    """A table without lines: a first column of labels, then right-aligned figures."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    # Where a terminal is too narrow, figures go on in the next line: cut off they would read as others.
    table.add_column(first, justify="left", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def labelled(rows: list[tuple[str, str]]) -> Table:
    """Labels with wrapped text beside them."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    previous = None
    for label, text in rows:
        grid.add_row("" if label == previous else f"{label}:", Text(text))
        previous = label
    return grid
