"""Published tables, recomputed: each cell as ``printed / ours`` and a mark for the comparison."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from zerocalc.papers.comparison import Comparison, TierRow
from zerocalc.papers.tables import READINGS, Cell, Reading, Table, summary
from zerocalc.quantities import GB, figure, format_count
from zerocalc.render.console import columns, emit, labelled, plainly
from zerocalc.results import display_name

LETTERS: dict[Reading, str] = {
    "truncated": "t",
    "derived": "d",
    "bound": "b",
    "figure": "f",
    "memory": "m",
    "unclear": "u",
}
"""What follows a mark, or stands in its place, where the print is not simply rounded."""
GAP = 3
"""Spaces between two columns."""
STYLES = {"same": "green", "differs": "bold red", None: "dim"}


def render_table(table: Table) -> RenderableType:
    """A table, group by group as the source has it, then what the marks mean, notes and how many
    cells agree.
    """
    parts: list[RenderableType] = [
        Text(table.title, style="bold"),
        Text(table.source, style="dim"),
        "",
    ]
    for group in dict.fromkeys(cell.group for cell in table.cells):
        cells = [cell for cell in table.cells if cell.group == group]
        if group:
            parts.append(Text(group))
        parts += [_grid(table, cells), ""]
    parts.append(Text(legend(table)))
    if table.notes:
        parts.append(labelled([("note", note) for note in table.notes]))
    parts.append(Text(summary(table), style="bold"))
    return Group(*parts)


class Wrapped:
    """A grid whose columns are laid out in as many grids, one below the other, as the console's
    width asks for.
    """

    def __init__(self, heading: str, labels: list[str], figures: dict[str, list[Text]]) -> None:
        self.heading, self.labels = plainly(heading), [plainly(label) for label in labels]
        self.figures = {
            plainly(name): [plainly(text) for text in texts] for name, texts in figures.items()
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The grids."""
        names = list(self.figures)
        widths = {
            name: max(cell_len(name), *(text.cell_len for text in self.figures[name])) + GAP
            for name in names
        }
        space = options.max_width - max(cell_len(label) for label in (self.heading, *self.labels))
        for parts in range(1, len(names) + 1):
            size = -(-len(names) // parts)
            chunks = [names[start : start + size] for start in range(0, len(names), size)]
            if all(sum(widths[name] for name in chunk) <= space for chunk in chunks):
                break
        for number, chunk in enumerate(chunks):
            grid = columns(*chunk, first=self.heading)
            for index, label in enumerate(self.labels):
                grid.add_row(Text(label), *(self.figures[name][index] for name in chunk))
            if number:
                yield ""
            yield grid


def _grid(table: Table, cells: list[Cell]) -> Wrapped:
    """The cells of one group; a unit stands with whatever shares it: the columns, or else the
    rows.
    """
    by_place = {(cell.row, cell.column): cell for cell in cells}
    used = [name for name in table.columns if any(cell.column == name for cell in cells)]
    rows = list(dict.fromkeys(cell.row for cell in cells))
    units = {name: next(cell.unit for cell in cells if cell.column == name) for name in used}
    row_units = {row: {cell.unit for cell in cells if cell.row == row} for row in rows}
    by_row = len({cell.unit for cell in cells}) > 1 and all(
        len(found) == 1 for found in row_units.values()
    )
    width = max(len(mark(cell)) for cell in cells)

    def column(name: str) -> list[Text]:
        found = [by_place.get((row, name)) for row in rows]
        return [
            _shown(cell, width, by_row or cell.unit == units[name]) if cell else Text()
            for cell in found
        ]

    labels = [f"{row} [{_short(*row_units[row])}]" for row in rows] if by_row else rows
    return Wrapped(
        table.heading,
        labels,
        {name if by_row else f"{name}, {_short(units[name])}": column(name) for name in used},
    )


def _short(unit: str) -> str:
    return unit.removesuffix(" params")


def _shown(cell: Cell, width: int, unit_known: bool) -> Text:
    unit = "" if unit_known else _short(cell.unit)
    printed = (
        "–"
        if cell.printed is None
        else f"{'< ' if cell.reading == 'bound' else ''}{cell.printed}{unit}"
    )
    return Text.assemble(
        f"{printed} / {cell.shown}{unit} ", (mark(cell).ljust(width), STYLES[cell.verdict])
    )


def mark(cell: Cell) -> str:
    """``✓`` agrees, ``✗`` differs, nothing where there is no verdict; then the letter of how the
    print is to be read.
    """
    sign = {"same": "✓", "differs": "✗", None: ""}[cell.verdict]
    return sign + LETTERS.get(cell.reading, "")


def legend(table: Table) -> str:
    """What the marks used in a table mean, in one line."""
    verdicts = {cell.verdict for cell in table.cells}
    readings = {cell.reading for cell in table.cells}
    words = ["printed / ours"]
    if "same" in verdicts:
        words.append("✓ same")
    if "differs" in verdicts:
        words.append("✗ differs")
    words += [
        f"{letter} {READINGS[reading]}"
        for reading, letter in LETTERS.items()
        if reading in readings
    ]
    return " · ".join(words)


TIER_ROWS: tuple[tuple[str, Callable[[TierRow], str]], ...] = (
    ("states on the GPU", lambda row: figure(row.gpu_bytes, GB)),
    ("states on the CPU", lambda row: figure(row.cpu_bytes, GB)),
    ("states on NVMe", lambda row: figure(row.nvme_bytes, GB)),
    ("CPU-GPU traffic per step", lambda row: figure(row.host_traffic_bytes, GB)),
    ("NVMe traffic per step", lambda row: figure(row.nvme_traffic_bytes, GB)),
    ("checkpoints on the GPU", lambda row: f"{row.checkpoints_on_gpu:.1%}".replace("%", " %")),
)


def render_comparison(comparison: Comparison, printed: Table | None = None) -> RenderableType:
    """DDP and the ZeRO stages side by side; with the table of [ZeRO] figure 1, also what that
    prints for the same model and GPUs.
    """
    c = comparison
    title = f"{format_count(c.parameters)} parameters on {c.gpus} GPUs: {c.title}"
    heading = "GB (1e9) per GPU"
    grid = columns(*(display_name(row.name) for row in c.stages), first=heading)
    for label, amounts in (
        ("weights", [row.weights_bytes for row in c.stages]),
        ("gradients", [row.gradients_bytes for row in c.stages]),
        ("optimizer states", [row.optimizer_bytes for row in c.stages]),
    ):
        grid.add_row(label, *(figure(amount, GB) for amount in amounts))
    grid.add_row("model states", *(figure(row.states_bytes, GB) for row in c.stages), style="bold")
    if printed is not None:
        grid.add_row(
            "  printed",
            *(
                Text.assemble(f"{cell.printed} ", (mark(cell), STYLES[cell.verdict]))
                for cell in printed.cells
            ),
        )
    grid.add_row("  of DDP", *(f"{row.share_of_ddp:.1%}".replace("%", " %") for row in c.stages))
    grid.add_section()
    grid.add_row("traffic per step", *(f"{row.volume_params:g}Ψ" for row in c.stages))
    grid.add_row("  of DDP", *(f"{row.ratio_to_ddp:.1f}×" for row in c.stages))
    grid.add_section()
    grid.add_row(
        f"largest model, {c.memory_bytes / GB:g} GB",
        *(format_count(row.largest_parameters) for row in c.stages),
    )
    tiers = Wrapped(
        "GB (1e9) per GPU",
        [label for label, _ in TIER_ROWS],
        {row.name: [Text(pick(row)) for _, pick in TIER_ROWS] for row in c.offloads},
    )
    return Group(
        Text(title, style="bold"),
        Text(c.source, style="dim"),
        "",
        grid,
        "",
        tiers,
        "",
        labelled([("note", note) for note in c.notes]),
    )


def show_tables(tables: list[Table]) -> None:
    """Print whole tables, one after the other."""
    shown: list[RenderableType] = []
    for table in tables:
        shown += ([""] if shown else []) + [render_table(table)]
    emit(*shown)


def show_overview(comparison: Comparison, tables: list[Table]) -> None:
    """Print the comparison, then a line on each table that can be asked for."""
    printed = next((table for table in tables if table.name == "zero-figure1"), None)
    listing = labelled([(table.name, summary(table)) for table in tables])
    emit(
        render_comparison(comparison, printed),
        "",
        Text("zerocalc paper TABLE (or all) compares each of these, cell by cell:"),
        listing,
    )
