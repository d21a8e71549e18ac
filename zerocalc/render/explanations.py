"""`explain` as text: every entry with its formula, and the sums as sums."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from zerocalc.answers.explain import ROWS_AT_PEAK, Explanation, saved_tensors
from zerocalc.quantities import byte_unit, figure, format_multiple
from zerocalc.render.console import columns, emit, labelled
from zerocalc.render.heading import header
from zerocalc.results import (
    NETWORK_FABRICS,
    OPERATIONS,
    STATE_KINDS,
    Collective,
    Figure,
    Moment,
    Placement,
    Plan,
    TensorShare,
    Term,
    TimePart,
    display_name,
)
from zerocalc.sources import PAPERS, cited


def show(plan: Plan, explanations: list[Explanation], whole: bool) -> None:
    """Print entries; ``whole`` where they are all that there are, so that sums can be shown too."""
    shown: list[RenderableType] = [Text(line) for line in header(plan)]
    for explanation in explanations:
        shown += _memory(plan, explanation, whole)
        shown += _traffic(plan, explanation, whole)
        shown += _times(explanation)
    symbols = _legend(explanations)
    rows = [("symbols", symbols)] if symbols else []
    rows += [("sources", f"[{tag}] {PAPERS[tag]}") for tag in _papers(plan, explanations)]
    shown += ["", labelled([*rows, *(("assumed", text) for text in plan.assumptions)])]
    emit(*shown)


def _amount(number: int) -> str:
    exact, rounded = f"{number:,} bytes", _rounded(number)
    return exact if rounded == exact else f"{exact} ({rounded})"


def _while(moments: tuple[Moment, ...]) -> str:
    return moments[0] if len(moments) == 1 else f"{moments[0]} to {moments[-1]}"


def _entry(
    title: str, entry: Term | Collective | TimePart | Figure, result: str
) -> list[RenderableType]:
    """A title, then formula = numbers = result, the source and the assumption."""
    formula = entry.formula
    lines: list[RenderableType] = [Text(title, "bold")]
    text = Text(f"{formula.text} = {formula.substituted(entry.inputs)} = {result}")
    lines.append(Padding(text, (0, 0, 0, 2)))
    source = f"source: {entry.source}"
    assumption = entry.assumption if isinstance(entry, Term) else None
    lines.append(
        Padding(
            Text(source + (f"; assumed: {assumption}" if assumption else ""), "dim"), (0, 0, 0, 2)
        )
    )
    return lines


def _sum(label: str, parts: list[int]) -> Text:
    total = sum(parts)
    spelled = " + ".join(f"{part:,}" for part in parts) if len(parts) > 1 else "one entry"
    return Text(
        f"{label}: {spelled} = {_amount(total)}" if parts else f"{label}: nothing = 0 bytes",
        "green",
    )


def _memory(plan: Plan, explanation: Explanation, whole: bool) -> list[RenderableType]:
    if not explanation.terms and not whole:
        return []
    lines: list[RenderableType] = [
        "",
        Text(f"{display_name(explanation.name)}, memory", "bold underline"),
    ]
    for term in explanation.terms:
        place = {"gpu": "per GPU", "cpu": "per node, on the CPU", "nvme": "per node, on NVMe"}[
            term.tier
        ]
        lines += _entry(f"{term.name}: {place}, {_while(term.moments)}", term, _amount(term.bytes))
    if explanation.row and not whole:
        lines.append(_sum(explanation.row, [t.bytes for t in explanation.terms]))
    tensors = [] if explanation.row in ROWS_AT_PEAK else saved_tensors(plan, explanation.terms)
    if tensors and not whole:
        groups = sorted({t.group for t in tensors})
        for group in groups:
            own = [t for t in tensors if t.group == group]
            whose = (
                "one layer"
                if groups == [1]
                else f"one of {own[0].layers:,} layers"
                if own[0].layers > 1
                else "one layer of a kind"
            )
            lines += ["", _tensors(own, whose)]
    if whole:
        gpu = explanation.candidate.memory.gpu
        alive = [
            t.bytes for t in gpu.terms if gpu.peak_moment in t.moments and t.kind != "fragmentation"
        ]
        lines.append(_sum("model states", [t.bytes for t in gpu.terms if t.kind in STATE_KINDS]))
        lines.append(_sum(f"peak, at {gpu.peak_moment}", alive))
        lost = [t.bytes for t in gpu.terms if t.kind == "fragmentation"]
        if lost:
            lines.append(_sum("with fragmentation", [gpu.peak_bytes, *lost]))
        if gpu.unknown:
            lines.append(Text(f"unknown, not in the sums: {', '.join(gpu.unknown)}", "yellow"))
    return lines


def _tensors(tensors: list[TensorShare], whose: str) -> RenderableType:
    table = columns("shape", "dtype", "bytes", "share", first=f"saved by {whose}")
    for t in tensors:
        shape = " × ".join(f"{n:,}" for n in t.shape) + (f" / {t.divisor}" if t.divisor > 1 else "")
        table.add_row(
            t.name + (" (recomputed)" if t.rebuilt else ""),
            shape,
            t.dtype,
            f"{t.bytes:,}",
            f"{100 * t.share:.1f} %",
        )
    return table


def _crossing(plan: Plan, where: Placement) -> str:
    """How much of a collective crosses the network, per GPU and per NIC."""
    inside, across = (
        _rounded(amount) for amount in (where.intra_node_bytes, where.inter_node_bytes)
    )
    parts = [f"intra-node {inside}, inter-node {across}"]
    if where.hierarchical_bytes < where.inter_node_bytes:
        parts.append(f"inter-node {_rounded(where.hierarchical_bytes)} if hierarchical")
    cluster = plan.job.cluster
    each = cluster.bytes_per_card(where.inter_node_bytes)
    if each is not None:
        parts.append(f"{_rounded(each)} per NIC ({cluster.network_cards} per node)")
    return "; ".join(parts)


def _rounded(number: int) -> str:
    unit, _, size = byte_unit(number, binary=False, least=0.1)
    return f"{number:,} bytes" if size == 1 else f"{figure(number, size)} {unit}"


def _traffic(plan: Plan, explanation: Explanation, whole: bool) -> list[RenderableType]:
    if not explanation.collectives and not whole:
        return []
    lines: list[RenderableType] = [
        "",
        Text(f"{display_name(explanation.name)}, traffic per step", "bold underline"),
    ]
    unknown = explanation.candidate.communication.unknown
    missing = (
        [Text(f"unknown, not in the sums: {', '.join(unknown)}", "yellow")]
        if unknown and whole
        else []
    )
    if not explanation.collectives:
        return [*lines, *(missing or [Text("nothing is sent")])]
    communication = explanation.candidate.communication
    places = dict(zip(map(id, communication.collectives), communication.placements, strict=True))
    for c in explanation.collectives:
        calls = f"{c.count:,} call{'s' if c.count > 1 else ''} of {c.tensor_bytes:,} bytes"
        hidden = "overlapped" if c.overlapped else "exposed"
        title = (
            f"{c.moment}: {c.op} of {c.what} ({c.dtype}), {calls}, {c.group} group of "
            f"{c.ranks:,}, {c.fabric}, {hidden}"
        )
        lines += _entry(title, c, f"{_amount(c.sent_bytes)} sent by each GPU")
        where = places.get(id(c))
        if where is not None and where.inter_node_bytes:
            lines.append(Padding(Text(_crossing(plan, where), "dim"), (0, 0, 0, 2)))
    if whole:
        network = [c.sent_bytes for c in explanation.collectives if c.fabric in NETWORK_FABRICS]
        lines.append(_sum("sent per GPU", network))
        lines.append(_volume(explanation))
    return [*lines, *missing]


def _times(explanation: Explanation) -> list[RenderableType]:
    if not explanation.times:
        return []
    lines: list[RenderableType] = [
        "",
        Text(f"{display_name(explanation.name)}, time per step", "bold underline"),
    ]
    for part in explanation.times:
        result = (
            f"{part.seconds:,.6g} s"
            if isinstance(part, TimePart)
            else f"{part.value:,}"
            if isinstance(part.value, int)
            else f"{part.value:,.6g}"
        )
        lines += _entry(part.name, part, result)
    return lines


def _volume(explanation: Explanation) -> Text:
    """The paper's convention: elements times how often an operation moves them, over the rank's
    parameters.
    """
    parts = [
        f"{OPERATIONS[c.op].volume}·{c.count:,}·{c.tensor_bytes:,} bytes of {c.dtype}"
        for c in explanation.collectives
        if c.group == "dp"
    ]
    volume = explanation.candidate.communication.volume_params
    return Text(
        f"volume for large N_d: ({' + '.join(parts) or '0'}), in elements over the rank's Ψ "
        f"= {format_multiple(volume, 4)}Ψ",
        "green",
    )


def _papers(plan: Plan, explanations: list[Explanation]) -> list[str]:
    entries = [entry for e in explanations for entry in (*e.terms, *e.collectives, *e.times)]
    return cited(*(entry.source for entry in entries), *plan.assumptions)


def _legend(explanations: list[Explanation]) -> str:
    meanings: dict[str, set[str]] = {}
    for explanation in explanations:
        entries: tuple[Term | Collective | TimePart | Figure, ...] = (
            *explanation.terms,
            *explanation.collectives,
            *explanation.times,
        )
        for entry in entries:
            for symbol, keyword in entry.formula.symbols.items():
                meanings.setdefault(symbol, set()).add(keyword.replace("_", " "))
    return "; ".join(f"{symbol} {' or '.join(sorted(names))}" for symbol, names in meanings.items())
