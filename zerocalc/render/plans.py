"""A plan as a table."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from zerocalc.quantities import figure
from zerocalc.render.console import SHORT_MOMENT, columns, emit, labelled
from zerocalc.render.heading import header, verdict
from zerocalc.render.rows import UNKNOWN, memory_rows, traffic_rows, unit_of
from zerocalc.render.times import network_words, time_rows
from zerocalc.results import Plan, display_name


def show(plan: Plan) -> None:
    """Print the verdict, the job, the table, the reasons and the assumptions."""
    shown: list[RenderableType] = (
        [verdict(plan)]
        if plan.job.cluster.usable_bytes is not None or plan.verdict == "does_not_fit"
        else []
    )
    shown += [Text(line) for line in header(plan)]
    shown.append("")
    unit, size = unit_of(plan)
    table = columns("", *(display_name(c.name) for c in plan.candidates), first=f"{unit} per GPU")
    for column, candidate in zip(table.columns[2:], plan.candidates, strict=True):
        if candidate is plan.chosen:
            column.header_style = "green"
    for part in (memory_rows(plan, size), traffic_rows(plan, size), time_rows(plan)):
        for row in part:
            cells = map(_coloured, row.cells)
            table.add_row(Text(row.label), row.coefficient, *cells, style=row.style)
        table.add_section()
    shown.append(table)
    if said := remarks(plan):
        shown += ["", labelled(said)]
    emit(*shown)


VERDICTS = {"yes": "green", "no": "red", UNKNOWN: "yellow"}


def _coloured(cell: str) -> Text:
    """A figure; whether something fits, and negative headroom, in colour."""
    negative = cell.startswith("-") and len(cell) > 1
    return Text(cell, "red" if negative else VERDICTS.get(cell, ""))


def _largest(plan: Plan) -> list[tuple[str, str]]:
    """What the peak of the candidate to take (or of the smallest one) mostly consists of, where
    activations are known.
    """
    candidate = plan.chosen or min(plan.candidates, key=lambda c: c.memory.gpu.reserved_bytes)
    gpu = candidate.memory.gpu
    if not gpu.activations_known:
        return []
    unit, size = unit_of(plan)
    word = unit.split()[0]
    parts = [
        f"{name} {figure(amount, size)} {word} ({100 * amount / gpu.peak_bytes:.0f} %)"
        for name, amount in gpu.largest_at_peak.items()
    ]
    return [
        (
            f"peak of {display_name(candidate.name)}",
            f"at {SHORT_MOMENT[gpu.peak_moment]}: {', '.join(parts)}",
        )
    ]


def _network(plan: Plan) -> list[tuple[str, str]]:
    """The network that the recommended candidate's traffic needs, or else the last one's."""
    candidate = plan.chosen or plan.candidates[-1]
    bandwidth = plan.job.cluster.inter_node_bytes_per_second
    words = (
        network_words(
            candidate.time, bandwidth, bool(candidate.communication.inter_node_bytes_per_gpu)
        )
        if candidate.time is not None
        else None
    )
    return [("network", words)] if words else []


def remarks(plan: Plan) -> list[tuple[str, str]]:
    """The lines below the table: labels and texts."""
    rows: list[tuple[str, str]] = []
    if plan.recommended is not None:
        rows += [
            (f"why {display_name(plan.recommended.name)}", reason)
            for reason in plan.recommended.why
        ]
    rows += _largest(plan) + _network(plan)
    rows += [("cheapest change", text) for text in plan.suggestions]
    rows += [("note", text) for text in plan.notes]
    rows += [("assumed", text) for text in plan.assumptions]
    return rows
