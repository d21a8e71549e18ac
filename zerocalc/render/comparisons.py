"""A plan compared with another tool, as a table."""

from __future__ import annotations

from collections.abc import Collection

from rich.text import Text

from zerocalc.answers.explain import PEAK_ROWS
from zerocalc.answers.other_tools import STATES, Compared, ToolComparison
from zerocalc.quantities import figure
from zerocalc.render.console import columns, emit, labelled
from zerocalc.render.rows import unit_of
from zerocalc.results import Plan, display_name

NONE = "-"


def show(plan: Plan, comparison: ToolComparison) -> None:
    """Print the tool's figures, ours, and what makes the difference, by kind; where the tool has
    none at all, only that.
    """
    unit, size = unit_of(plan)
    table = columns(
        "", *(display_name(c.name) for c in comparison.candidates), first=f"{unit} per GPU"
    )

    def row(label: str, cells: list[int | None], style: str = "") -> None:
        table.add_row(
            Text(label),
            "",
            *(NONE if amount is None else figure(amount, size) for amount in cells),
            style=style,
        )

    candidates = comparison.candidates
    row(comparison.tool, [c.tool_bytes for c in candidates], "bold")
    row(f"{STATES}, difference", [_sum(c, {None}) for c in candidates])
    for label, kinds in PEAK_ROWS:
        amounts = [_sum(c, kinds) for c in candidates]
        if any(amounts):
            row(label, amounts)
    row("our peak", [c.peak_bytes for c in candidates], "bold")
    rows = [("source", comparison.source), *[("note", note) for note in comparison.notes]]
    rows += [
        (display_name(c.name), f"the tool: {c.formula.text} = {c.formula.substituted(c.inputs)}")
        for c in candidates
        if c.formula is not None
    ]
    if any(c.tool_bytes is not None for c in candidates):
        emit("", table)
    emit("", labelled(rows))


def _sum(candidate: Compared, kinds: Collection[str | None]) -> int | None:
    return (
        sum([d.bytes for d in candidate.differences if d.kind in kinds])
        if candidate.tool_bytes is not None
        else None
    )
