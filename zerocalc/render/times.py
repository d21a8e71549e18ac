"""The time part of a plan's table, and the note on the network."""

from __future__ import annotations

from zerocalc.quantities import BITS, GB, format_rate
from zerocalc.render.rows import Row
from zerocalc.results import Plan, Timing

MINUTE, HOUR = 60.0, 3600.0
LEAST_BANDWIDTH = GB // 10
"""Bytes per second; any network has more."""


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
    rows += seconds("  compute", [t.compute_seconds for t in times])
    rows += seconds(
        "  exposed communication",
        [t.exposed_communication_seconds for t in times],
        always=False,
    )
    rows += seconds("  pipeline bubble", [t.bubble_seconds for t in times], always=False)
    rows += seconds("  optimizer step", [t.update_seconds for t in times])
    rows.append(Row("  MFU", "", tuple(f"{100 * t.mfu:.1f} %" for t in times)))
    rows.append(Row("  tokens per second", "", tuple(f"{t.tokens_per_second:,.0f}" for t in times)))
    if times[0].days is not None:
        rows.append(Row("  days", "", tuple(f"{t.days or 0:,.1f}" for t in times)))
        rows.append(Row("  GPU-hours", "", tuple(f"{t.gpu_hours or 0:,.0f}" for t in times)))
    return rows


def network_words(time: Timing, bandwidth: int | None, crosses: bool) -> str | None:
    """The communication that no bandwidth hides, and the bandwidth that hides the rest behind
    compute; ``bandwidth``: a node's [bytes/s].

    ``None`` where nothing ``crosses`` nodes, or the node's bandwidth hides all of it.
    """
    needed, alone, total = (
        time.hidden_above_bytes_per_second_per_node,
        time.unhidable_communication_seconds,
        time.communication_seconds,
    )
    exposed, unit = time.exposed_communication_seconds, _unit(total)
    has = f"; a node has {format_rate(bandwidth)}" if bandwidth else ""
    traffic = f"{_in(unit, total)} of communication"
    if alone:
        traffic += f", of which {_in(unit, alone)} cannot overlap with compute"
    rest = "compute hides the rest" if alone else "compute hides all of it"
    if needed is None:
        if not crosses or exposed <= alone:
            return traffic if crosses and alone else None
        return (
            f"{traffic}; {_in(unit, exposed)} exposed, and no inter-node bandwidth hides all of "
            f"it: latency and intra-node traffic take too long{has}"
        )
    if needed < LEAST_BANDWIDTH:
        return f"{traffic}; {rest} over any network"
    enough = f"{format_rate(needed)} per node ({BITS * needed / GB:,.0f} Gbps, all NICs together)"
    return f"{traffic}; {rest} from {enough} on{has}"


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
