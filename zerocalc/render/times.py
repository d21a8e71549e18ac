"""The time part of a plan's table, and what is said of it."""

from __future__ import annotations

from zerocalc.quantities import BITS, GB, format_rate
from zerocalc.render.rows import Row
from zerocalc.results import Plan, Timing

MINUTE, HOUR = 60.0, 3600.0
LEAST_BANDWIDTH = GB // 10
"""Bytes a second; what less than this hides, any network does."""


def time_rows(plan: Plan) -> list[Row]:
    """Rows of the candidates' times; none where they are not known."""
    found = [c.time for c in plan.candidates]
    times = [t for t in found if t is not None]
    if len(times) < len(found):
        return []

    unit = _unit(max(t.step_seconds for t in times))

    def seconds(label: str, values: list[float], always: bool = True) -> list[Row]:
        return (
            [Row(label, "", tuple(_in(unit, value) for value in values))]
            if always or any(values)
            else []
        )

    rows = seconds("time per step", [t.step_seconds for t in times])
    rows += seconds("  computing", [t.compute_seconds for t in times])
    rows += seconds(
        "  traffic that nothing hides",
        [t.exposed_communication_seconds for t in times],
        always=False,
    )
    rows += seconds("  pipeline's bubble", [t.bubble_seconds for t in times], always=False)
    rows += seconds("  optimizer's update", [t.update_seconds for t in times])
    rows.append(Row("  MFU, of the dense peak", "", tuple(f"{100 * t.mfu:.1f} %" for t in times)))
    rows.append(Row("  tokens per second", "", tuple(f"{t.tokens_per_second:,.0f}" for t in times)))
    if times[0].days is not None:
        rows.append(Row("  days", "", tuple(f"{t.days or 0:,.1f}" for t in times)))
        rows.append(Row("  GPU-hours", "", tuple(f"{t.gpu_hours or 0:,.0f}" for t in times)))
    return rows


def network_words(time: Timing, there: int | None, crosses: bool) -> str | None:
    """Whether it is the network: what waits whatever its bandwidth, and from which on computing
    hides the rest; ``there``: what a node has.

    ``None`` where nothing ``crosses`` nodes, or all of it is hidden by what is there.
    """
    needed, alone, total = (
        time.hidden_above_bytes_per_second_per_node,
        time.unhidable_communication_seconds,
        time.communication_seconds,
    )
    exposed, unit = time.exposed_communication_seconds, _unit(total)
    has = f"; a node's have {format_rate(there)}" if there else ""
    beside = (
        f"of {_in(unit, total)} of traffic {_in(unit, alone)} have no computing beside them"
        if alone
        else f"{_in(unit, total)} of traffic"
    )
    if needed is None:
        if not crosses or exposed <= alone:
            return f"{beside}" if crosses and alone else None
        return (
            f"{beside}, {_in(unit, exposed)} are waited for; no bandwidth between nodes hides "
            f"all: hops and what stays inside take too long{has}"
        )
    if needed < LEAST_BANDWIDTH:
        return f"{beside}; computing hides {'the rest' if alone else 'them'} over any network"
    enough = f"{format_rate(needed)} a node ({BITS * needed / GB:,.0f} Gbps, all its network cards)"
    return f"{beside}; computing hides {'the rest' if alone else 'them'} from {enough} on{has}"


def _unit(longest: float) -> tuple[str, float, float]:
    """The one unit for times up to ``longest`` seconds: its name, its seconds, and the value from
    which on decimals say nothing.
    """
    if longest >= 10 * HOUR:
        return "h", HOUR, 1000
    if longest >= 10 * MINUTE:
        return "min", MINUTE, 1000
    return ("s", 1.0, 1000) if longest >= 10 else ("ms", 0.001, 100)


def _in(unit: tuple[str, float, float], value: float) -> str:
    name, size, whole_from = unit
    amount = value / size
    return (
        f"{amount:,.0f} {name}"
        if amount >= whole_from
        else f"{amount:,.{1 if name == 'ms' else 2}f} {name}"
    )
