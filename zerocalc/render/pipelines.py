"""What each stage of a pipeline holds, as a table."""

from __future__ import annotations

from rich.text import Text

from zerocalc.quantities import figure, format_count
from zerocalc.render.console import columns, emit, labelled
from zerocalc.render.rows import FITS, UNKNOWN, unit_of
from zerocalc.results import PipelineStages, Plan, display_name


def show(plan: Plan, rows: tuple[PipelineStages, ...]) -> None:
    """Print a row for each stage, or for several that are alike."""
    unit, size = unit_of(plan)
    known = plan.job.cluster.usable_bytes is not None
    titles = ["layers", "params", "in flight", "states", "activations", "peak"] + ["fits"] * known
    table = columns(*titles, first=f"{unit} per GPU")
    before = None
    for row in rows:
        if row.stage != before:
            table.add_section()
            table.add_row(display_name(row.name), *[""] * len(titles), style="bold")
        before = row.stage
        which = str(row.first) if row.first == row.last else f"{row.first}-{row.last}"
        cells = [
            str(row.layers),
            format_count(row.parameters),
            str(row.in_flight),
            figure(row.states_bytes, size),
        ]
        cells += [
            UNKNOWN if row.activations_bytes is None else figure(row.activations_bytes, size),
            figure(row.peak_bytes, size),
        ]
        table.add_row(Text(f"  stage {which}"), *cells, *([FITS[row.fits]] if known else []))
    what = (
        "layer chunks, counted once per micro-batch,"
        if plan.job.parallel.interleave > 1
        else "micro-batches"
    )
    remarks = [("in flight", f"{what} whose activations are saved at the same time")]
    copies = sum({row.last: row.copied_parameters for row in rows}.values())
    if copies:
        remarks.append(
            (
                "params",
                f"the last stage has its own copy of the tied embedding ({format_count(copies)})",
            )
        )
    emit("", table, "", labelled(remarks))
