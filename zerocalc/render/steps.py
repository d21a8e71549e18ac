"""`step` as text: the moments of a step, stages side by side, and the three questions of somebody
learning ZeRO.
"""

from __future__ import annotations

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from zerocalc.answers.timeline import (
    QUESTIONS,
    TITLES,
    Holding,
    Instant,
    copied,
    elsewhere,
    gathered,
    holdings,
    moved,
    unknown_gathers,
    walk,
)
from zerocalc.quantities import figure
from zerocalc.render.console import columns, emit, labelled
from zerocalc.render.heading import header
from zerocalc.render.rows import unit_of
from zerocalc.results import (
    MOMENTS,
    STATE_KINDS,
    Collective,
    Estimate,
    Job,
    Moment,
    Plan,
    Term,
    display_name,
)

LEGEND = "+ allocated, - freed, > sent (calls, bytes)"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number > 1 else ''}"


def show(plan: Plan) -> None:
    """Print the walk through one step."""
    shown: list[RenderableType] = [Text(line) for line in header(plan)]
    walks = [(candidate, walk(candidate)) for candidate in plan.candidates]
    heading, size = unit_of(plan)
    unit = heading.partition(" ")[0]
    shown.append(
        Text(
            f"{heading} per GPU, one step of "
            f"{_count(plan.job.training.accumulation, 'micro-batch', 'es')}: {LEGEND}"
        )
    )
    for index, moment in enumerate(MOMENTS):
        title = f"{index + 1}. {TITLES[moment]}"
        if moment != MOMENTS[0] and not any(
            i.arrives or i.frees or i.sends for i in _at(moment, walks)
        ):
            shown += ["", Text(title, "bold"), Text("no known change")]
        else:
            shown += ["", _moment(title, moment, walks, size)]
    shown += ["", Rule(style="dim")]
    for question in QUESTIONS:
        shown += [
            Text(question, "bold"),
            labelled(
                [
                    (display_name(c.name), answer(question, plan.job, c, unit, size))
                    for c in plan.candidates
                ]
            ),
            "",
        ]
    remarks = [("note", text) for text in plan.notes] + [
        ("assumed", text) for text in plan.assumptions
    ]
    shown.append(labelled(remarks))
    emit(*shown)


def _at(moment: Moment, walks: list[tuple[Estimate, list[Instant]]]) -> list[Instant]:
    return [next(i for i in instants if i.moment == moment) for _, instants in walks]


def _moment(
    title: str, moment: Moment, walks: list[tuple[Estimate, list[Instant]]], size: int
) -> Table:
    """What each stage holds at a moment, what was allocated and freed since the previous one, and
    what was sent.
    """
    instants = _at(moment, walks)
    table = columns(*(display_name(candidate.name) for candidate, _ in walks), first=title)

    def rows(mark: str, each: list[tuple[Term, ...]], style: str = "") -> None:
        for name in dict.fromkeys(t.name for terms in each for t in terms):
            amounts = [[t.bytes for t in terms if t.name == name] for terms in each]
            table.add_row(
                f"{mark} {name}",
                *(figure(sum(found), size) if found else "" for found in amounts),
                style=style,
            )

    new = {t.name for i in instants for t in i.arrives} if moment != MOMENTS[0] else set()
    rows(" ", [tuple(t for t in i.holds if t.name not in new) for i in instants])
    rows("+", [tuple(t for t in i.holds if t.name in new) for i in instants])
    known = any(candidate.memory.gpu.unknown for candidate, _ in walks)
    table.add_row(
        f"  {'total (known part)' if known else 'total'}",
        *(figure(i.total_bytes, size) for i in instants),
        style="bold",
    )
    peaks = [candidate.memory.gpu.peak_moment == moment for candidate, _ in walks]
    if any(peaks):
        table.add_row("", *("peak" if here else "" for here in peaks), style="italic")
    if moment != MOMENTS[0]:
        rows("-", [i.frees for i in instants], "dim")
    sent = [_sums(i.sends) for i in instants]
    for key in dict.fromkeys(key for sums in sent for key in sums):
        op, what, group = key
        cells = (
            f"×{sums[key][0]:,} {figure(sums[key][1], size)}" if key in sums else ""
            for sums in sent
        )
        table.add_row(f"> {op} of {what} ({group})", *cells)
    return table


def _sums(collectives: tuple[Collective, ...]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Calls and bytes of each operation on one thing in one group."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for c in collectives:
        key = (c.op, c.what, c.group)
        calls, sent = sums.get(key, (0, 0))
        sums[key] = calls + c.count, sent + c.sent_bytes
    return sums


def answer(question: str, job: Job, candidate: Estimate, unit: str, size: int) -> str:
    """One of the three questions, answered from a candidate's entries."""
    return {QUESTIONS[0]: _forward, QUESTIONS[1]: _gradients, QUESTIONS[2]: _update}[question](
        job, candidate, unit, size
    )


def _part(job: Job) -> str:
    """What one GPU works on, where the model is divided among several."""
    split = job.parallel.tp * job.parallel.pp
    return f"of its 1/{split:,} of the model: " if split > 1 else ""


def _share(holding: Holding, unit: str, size: int) -> str:
    part = "all" if holding.parts == 1 else f"1/{holding.parts:,} of the"
    return f"{part} {holding.name} ({figure(holding.bytes, size)} {unit})"


def _away(candidate: Estimate, kinds: frozenset[str], unit: str, size: int) -> str:
    """What is offloaded to a node's CPU memory or NVMe, if anything is."""
    words = {"cpu": "the CPU", "nvme": "NVMe"}
    sums = {
        tier: sum(t.bytes for t in elsewhere(candidate, kinds) if t.tier == tier) for tier in words
    }
    parts = [
        f"{figure(amount, size)} {unit} per node on {words[tier]}"
        for tier, amount in sums.items()
        if amount
    ]
    return f"; offloaded model states: {' and '.join(parts)}" if parts else ""


def _copied_away(candidate: Estimate, unit: str, size: int) -> str:
    """Gradients that leave the GPU as they come."""
    sent = sum(
        c.sent_bytes
        for c in copied(candidate, "backward")
        if c.fabric == "pcie" and c.what.startswith("gradients to")
    )
    return f"copied to the CPU ({figure(sent, size)} {unit} per GPU)"


def _update_on_cpu(candidate: Estimate, unit: str, size: int) -> str:
    """The step of an optimizer whose states are in CPU memory, or pass through it."""
    read = sum(c.sent_bytes for c in copied(candidate, "step") if c.fabric == "nvme")
    back = sum(c.sent_bytes for c in copied(candidate, "step") if c.fabric == "pcie")
    text = "Each node's CPU updates the shards of its GPUs with the optimizer states in its memory"
    if read:
        text = (
            "Each node's CPU updates the shards of its GPUs, reading their states from NVMe and "
            f"writing them back ({figure(read, size)} {unit} per GPU)"
        )
    if back:
        text += f"; each GPU receives its new weights ({figure(back, size)} {unit})"
    calls = moved(candidate, "step", "weights")
    if calls:
        return (
            f"{text}; then {calls[0].op} gives every GPU all new weights "
            f"({figure(sum(c.sent_bytes for c in calls), size)} {unit} sent)."
        )
    return (
        f"{text}; the next forward fetches the new weights."
        if not back
        else f"{text}; the next forward gathers them."
    )


def _seen(job: Job) -> str:
    """The data that a GPU's activations come from."""
    if job.cluster.gpus == 1:
        return "all activations are its own"
    if job.model_parallel == 1:
        return "activations are its own: every GPU processes different data"
    others = [
        (job.dp, "data-parallel ranks process different data"),
        (job.parallel.cp, "context-parallel ranks other tokens of the same sequences"),
        (job.parallel.tp, "tensor-parallel ranks the same tokens, in their parts of each layer"),
        (job.parallel.pp, "pipeline stages the same tokens, in their layers"),
    ]
    return f"activations are its own: {', '.join(words for degree, words in others if degree > 1)}"


def _forward(job: Job, candidate: Estimate, unit: str, size: int) -> str:
    held = [_share(h, unit, size) for h in holdings(candidate, "forward")]
    text = (
        _part(job)
        + (", ".join(held) or "no model states")
        + _away(candidate, STATE_KINDS, unit, size)
    )
    calls = moved(candidate, "forward", "weights")
    if calls:
        op = calls[0].op
        units = gathered(candidate, "forward")
        how_large = (
            f" ({figure(sum(t.bytes for t in units), size)} {unit} at a time)" if units else ""
        )
        text += (
            f"; each unit's weights arrive by {op} just before use and are freed "
            f"after it{how_large}"
        )
        if unknown_gathers(candidate):
            text += " (unit size depends on the architecture)"
    return f"{text}; {_seen(job)}."


def _gradients(job: Job, candidate: Estimate, unit: str, size: int) -> str:
    calls = moved(candidate, "backward", "gradients")
    kept = next((h for h in holdings(candidate, "backward_end") if h.kind == "gradients"), None)
    split = job.parallel.tp * job.parallel.pp
    made = (
        f"Backward computes {'them' if split == 1 else f'those of its 1/{split:,} of the model,'} "
        "from the last layer to the first"
    )
    share = _share(kept, unit, size) if kept else _copied_away(candidate, unit, size)
    if not calls:
        return (
            f"{made}; no other GPU holds the same parameters, so nothing is reduced; each GPU "
            f"keeps {share}."
        )
    sent = sum(c.sent_bytes for c in calls)
    count = sum(c.count for c in calls)
    hidden = "during backward" if all(c.overlapped for c in calls) else "after backward"
    each = "each GPU" if split == 1 else f"each of the {calls[0].ranks:,} GPUs with that part"
    fate = (
        f"{each} keeps the full sums"
        if kept and kept.parts == 1
        else f"{each} keeps its shard of the sums and frees the rest"
    )
    how = (
        f"{calls[0].op} sums them {hidden} ({_count(count, 'call')}, {figure(sent, size)} "
        f"{unit} sent)"
    )
    return f"{made}; {how}; {fate}: {share}."


def _update(job: Job, candidate: Estimate, unit: str, size: int) -> str:
    if job.zero.offload_optimizer != "none":
        return _update_on_cpu(candidate, unit, size)
    held = holdings(candidate, "step")
    parts = next(h for kind in ("optimizer", "weights") for h in held if h.kind == kind).parts
    return _update_on_gpus(job, candidate, parts, unit, size)


def _update_on_gpus(job: Job, candidate: Estimate, parts: int, unit: str, size: int) -> str:
    """The step where each GPU updates its own shard, one of ``parts``."""
    if job.cluster.gpus == 1:
        return "The one GPU updates all parameters."
    if job.shards == 1:
        return "Each GPU updates its part of the model, which no other GPU holds: nothing is sent."
    updated = (
        "all parameters"
        if job.parallel.tp * job.parallel.pp == 1
        else "all parameters of its part of the model"
    )
    if parts == 1:
        return (
            f"Every GPU updates {updated} from the same gradients: all copies agree and nothing is "
            "sent."
        )
    whole = (
        "the parameters"
        if updated == "all parameters"
        else "the parameters of its part of the model"
    )
    text = f"Each GPU updates its 1/{parts:,} of {whole} with its shard of the optimizer states"
    calls = moved(candidate, "step", "weights")
    if calls:
        sent = figure(sum(c.sent_bytes for c in calls), size)
        new = "all new weights" if updated == "all parameters" else "all new weights of that part"
        return f"{text}; then {calls[0].op} gives every GPU {new} ({sent} {unit} sent)."
    return (
        f"{text}; no GPU keeps the rest, so nothing is sent: the next forward gathers the new "
        "weights."
    )
