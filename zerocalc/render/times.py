"""The time part of a plan's table, and what is said of it."""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.results import Plan, Timing

MINUTE, HOUR = 60.0, 3600.0


@record
class TimeRow:
    """One line: a label and a figure per candidate."""

    label: str
    cells: tuple[str, ...]


def time_rows(plan: Plan) -> list[TimeRow]:
    """Rows of the candidates' times; none where they are not known."""
    found = [c.time for c in plan.candidates]
    times = [t for t in found if t is not None]
    if len(times) < len(found):
        return []

    def seconds(label: str, values: list[float], always: bool = True) -> list[TimeRow]:
        return [TimeRow(label, tuple(_seconds(value) for value in values))] if always or any(values) else []

    rows = seconds("time per step", [t.step_seconds for t in times])
    rows += seconds("  computing", [t.compute_seconds for t in times])
    rows += seconds("  traffic that nothing hides", [t.exposed_communication_seconds for t in times], always=False)
    rows += seconds("  pipeline's bubble", [t.bubble_seconds for t in times], always=False)
    rows += seconds("  optimizer's update", [t.update_seconds for t in times])
    rows.append(TimeRow("  MFU, of the dense peak", tuple(f"{100 * t.mfu:.1f} %" for t in times)))
    rows.append(TimeRow("  tokens per second", tuple(f"{t.tokens_per_second:,.0f}" for t in times)))
    if times[0].days is not None:
        rows.append(TimeRow("  days", tuple(f"{t.days or 0:,.1f}" for t in times)))
        rows.append(TimeRow("  GPU-hours", tuple(f"{t.gpu_hours or 0:,.0f}" for t in times)))
    return rows


def network_words(time: Timing) -> str | None:
    """Whether it is the network: from which bandwidth on computing hides what may run beside it."""
    needed, exposed = time.hidden_above_bytes_per_second_per_node, time.exposed_communication_seconds
    if needed is None:
        return None
    waits = f"of {_seconds(time.communication_seconds)} of traffic computing waits for {_seconds(exposed) if exposed else 'none'}"
    enough = f"{needed / 1e9:,.1f} GB/s a node ({8 * needed / 1e9:,.0f} Gbps, all its network cards)"
    return f"{waits}; from {enough} on it hides all that may run beside it"


def _seconds(value: float) -> str:
    if value >= HOUR:
        return f"{value / HOUR:,.2f} h"
    if value >= MINUTE:
        return f"{value / MINUTE:,.2f} min"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms" if value else "0"
