"""A plan as a table, as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import RenderableType
from rich.text import Text

from zerocalc.answers.explain import PEAK_ROWS
from zerocalc.answers.planner import describe_model, short_of, unsure
from zerocalc.ledger import STATE_KINDS, record
from zerocalc.quantities import GIB, byte_unit, figure, format_gib, format_multiple
from zerocalc.render.console import SHORT_MOMENT, columns, emit, labelled
from zerocalc.render.times import network_words, time_rows
from zerocalc.results import Communication, Estimate, Plan, display_name
from zerocalc.schedule import HOST_TRAFFIC
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.spec.training import Training

UNKNOWN = "unknown"


@record
class Row:
    """One line of the table: a label, the coefficient of Ψ if there is one, a figure per
    candidate.
    """

    label: str
    coefficient: str
    cells: tuple[str, ...]
    style: str = ""


def parameters_of(plan: Plan) -> int:
    """Parameters of the whole model."""
    from zerocalc.sharding.rank import rank

    return rank(plan.job).total


def show(plan: Plan) -> None:
    """Print the answer: the verdict, what was asked, the table, then why and what was assumed."""
    shown: list[RenderableType] = (
        [verdict(plan)]
        if plan.job.cluster.usable_bytes is not None or plan.verdict == "does_not_fit"
        else []
    )
    shown += [Text(line) for line in header(plan.job, parameters_of(plan))]
    shown.append("")
    unit, size = unit_of(plan)
    table = columns("", *(display_name(c.name) for c in plan.candidates), first=f"{unit} per GPU")
    for column, candidate in zip(table.columns[2:], plan.candidates, strict=True):
        if plan.recommended is not None and candidate.name == plan.recommended.name:
            column.header_style = "green"
    for row in memory_rows(plan, size):
        table.add_row(Text(row.label), row.coefficient, *map(_coloured, row.cells), style=row.style)
    table.add_section()
    for row in traffic_rows(plan, size):
        table.add_row(Text(row.label), row.coefficient, *map(_coloured, row.cells), style=row.style)
    times = time_rows(plan)
    if times:
        table.add_section()
    for timed in times:
        table.add_row(Text(timed.label), "", *timed.cells)
    shown.append(table)
    if said := remarks(plan):
        shown += ["", labelled(said)]
    emit(*shown)


VERDICTS = {"yes": "green", "no": "red", UNKNOWN: "yellow"}


def _coloured(cell: str) -> Text:
    """A figure; what says whether something fits, or what is lacking, in colour."""
    lacking = cell.startswith("-") and len(cell) > 1
    return Text(cell, "red" if lacking else VERDICTS.get(cell, ""))


def verdict(plan: Plan) -> Text:
    """The first line when the GPU's memory is known."""
    known = plan.job.cluster.usable_bytes
    usable = known or 0
    if plan.recommended is not None:
        chosen = next(c for c in plan.candidates if c.name == plan.recommended.name)
        gpu = chosen.memory.gpu
        name = display_name(chosen.name)
        if chosen.fits:
            spare = format_gib(usable - gpu.reserved_bytes)
            fits = "fits on an even share of the pipeline" if plan.job.even_share else "fits"
            return Text(
                f"{name} {fits}: {figure(gpu.reserved_bytes, GIB)} of "
                f"{format_gib(usable)}, {spare} to spare. {_traffic(chosen)}",
                "bold green",
            )
        takes = f"{figure(gpu.reserved_bytes, GIB)} of {format_gib(usable)}"
        condition = (
            f"without {', '.join(gpu.unknown)}"
            if gpu.unknown
            else f"if {' and '.join(unsure(chosen))}"
        )
        return Text(f"{name} may fit: {takes} {condition}. {_traffic(chosen)}", "bold yellow")
    best = min(plan.candidates, key=lambda c: c.memory.gpu.reserved_bytes)
    lacking = max(best.memory.gpu.reserved_bytes, best.memory.gpu.states_bytes) - usable
    if lacking > 0 and known is not None:
        lacks = f"{'at least ' if best.memory.gpu.unknown else ''}{format_gib(lacking)}"
        return Text(
            f"Nothing fits in {format_gib(usable)}: {display_name(best.name)}, the "
            f"closest, lacks {lacks}.",
            "bold red",
        )
    fitting = [
        c
        for c in plan.candidates
        if (max(c.memory.gpu.reserved_bytes, c.memory.gpu.states_bytes) <= usable or known is None)
        and short_of(c)
    ]
    if fitting:
        best = min(
            fitting,
            key=lambda c: sum(tier.lacking_bytes for tier in (c.memory.cpu, c.memory.nvme) if tier),
        )
        return Text(
            f"Nothing fits: {display_name(best.name)}, the closest, lacks "
            f"{' and '.join(short_of(best))}.",
            "bold red",
        )
    return Text("Nothing can be recommended.", "bold yellow")


def _traffic(candidate: Estimate) -> str:
    ratio = candidate.communication.ratio_to_dp
    if ratio is None:
        return "No traffic between data-parallel ranks."
    if candidate.stage == 0:
        return "Plain data parallelism."
    return (
        "Same traffic as DDP."
        if ratio == 1
        else f"{format_multiple(ratio, 3)}× the traffic of DDP."
    )


def header(job: Job, parameters: int) -> list[str]:
    """What was asked, in one line for states and one for the batch where it is known."""
    p, t = job.parallel, job.training
    degrees = "".join(
        f", {name} {degree}"
        for name, degree in (
            ("tp", p.tp),
            ("pp", p.pp),
            ("interleave", p.interleave),
            ("cp", p.cp),
            ("ep", p.ep),
        )
        if degree > 1
    )
    degrees += f", etp {job.expert_tensor_parallel}" if job.experts_apart and p.tp > 1 else ""
    gpus = f"{job.cluster.gpus:,} GPU{'s' if job.cluster.gpus > 1 else ''}"
    kind = f" {job.cluster.gpu.title}" if job.cluster.gpu else ""
    lines = [f"{describe_model(job, parameters)}, {gpus}{kind}{degrees}, N_d {job.shards:,}"]
    lora = job.model.lora
    if job.model.trainable:
        lines[0] += f", {job.model.trainable:,} trained"
    per_parameter = f"{job.trained_recipe.bytes_per_parameter:.4g} B/param"
    lines.append(
        f"recipe {job.recipe.name} ({per_parameter}{' of the adapters' if lora else ''}), "
        f"{job.framework.name}"
    )
    if lora:
        base = job.recipe.compute if job.model.quantised is None else job.model.quantised.name
        lines.append(
            f"LoRA of rank {lora.rank} on {', '.join(lora.targets)}, adapters in "
            f"{job.adapter_dtype}, base frozen in {base}"
        )
    if t.seq and not job.model.is_bare:
        batch = (
            f"sequences of {t.seq:,}, micro-batch {t.micro_batch:,}, accumulation "
            f"{t.accumulation:,}"
        )
        kernel = f", {t.attention} attention" if job.model.has_attention else ""
        lines.append(f"{batch}, recompute {_recomputed(t)}{kernel}{_layers(job)}")
    elif t.accumulation > 1:
        lines.append(f"accumulation {t.accumulation:,}")
    choices = _choices(job)
    return [*lines, ", ".join(choices)] if choices else lines


def _recomputed(t: Training) -> str:
    """What is recomputed, as far as it is not the default."""
    out: str = t.recompute
    if (
        t.recompute == "selective"
        and t.recompute_modules != type(t).model_fields["recompute_modules"].default
    ):
        out += f" ({', '.join(t.recompute_modules)})"
    return f"{out} of one layer in {t.recompute_every}" if t.recompute_every > 1 else out


def _layers(job: Job) -> str:
    """Whose layers and loss, where they are not the framework's."""
    how, loss = job.implementation, job.loss
    whose = f", {how.name} layers" if how.name != job.framework.implementation else ""
    return whose + (f", loss {loss.name}" if loss.name != how.loss else "")


def _choices(job: Job) -> list[str]:
    """What was chosen among ZeRO's options and is not the default, as its flags are spelled."""
    out = [f"{job.model.blocks} blocks"] if job.model.blocks else []
    if job.parallel.sequence_parallel:
        out.append("sequence-parallel")
    for name, field in type(job.zero).model_fields.items():
        value = getattr(job.zero, name)
        if name != "stage" and value != field.default:
            word = name.replace("_", "-")
            out.append(
                word
                if value is True
                else f"no-{word}"
                if value is False
                else f"{word} {value:,}"
                if isinstance(value, int)
                else f"{word} {value}"
            )
    return out


def unit_of(plan: Plan) -> tuple[str, int]:
    """The one unit of a plan's figures: as a heading names it, and its bytes. A GPU's memory is
    counted in GiB, papers count in GB.
    """
    gpus = [c.memory.gpu for c in plan.candidates]
    beside = [
        tier.bytes_per_node
        for c in plan.candidates
        for tier in (c.memory.cpu, c.memory.nvme)
        if tier is not None
    ]
    unit, meaning, size = byte_unit(
        max(*(max(g.states_bytes, g.peak_bytes) for g in gpus), *beside, 0),
        binary=plan.job.cluster.usable_bytes is not None,
    )
    return f"{unit} ({meaning})", size


def memory_rows(plan: Plan, size: int) -> list[Row]:
    """The memory part of the table, in units of ``size`` bytes."""
    gpus = [c.memory.gpu for c in plan.candidates]
    bytes_per_parameter = _coefficients(plan.job)

    def amounts(
        label: str, coefficient: str, pick: Callable[[Estimate], int], style: str = ""
    ) -> Row:
        return Row(label, coefficient, tuple(figure(pick(c), size) for c in plan.candidates), style)

    def sum_of(kind: str) -> Callable[[Estimate], int]:
        return lambda c: sum(t.bytes for t in c.memory.gpu.terms if t.kind == kind)

    rows = [
        amounts("weights", bytes_per_parameter.get("weights", ""), sum_of("weights")),
        amounts("gradients", bytes_per_parameter.get("gradients", ""), sum_of("gradients")),
        amounts("optimizer states", bytes_per_parameter.get("optimizer", ""), sum_of("optimizer")),
        amounts("model states", "", lambda c: c.memory.gpu.states_bytes, "bold"),
    ]
    whole = next(
        (g.states_bytes for g, c in zip(gpus, plan.candidates, strict=True) if c.stage == 0), None
    )
    if whole and len(gpus) > 1:
        rows.append(
            Row("  of DDP", "", tuple(_percent(g.states_bytes, whole) for g in gpus), "dim")
        )
    return [*rows, *_peak_rows(plan, amounts)]


def _coefficients(job: Job) -> dict[str, str]:
    """Bytes per parameter by kind of state, where the rows do not depend on shapes or on what is
    frozen.
    """
    if (
        job.model.trainable
        or job.model.lora
        or any(
            row.of not in ("all", "trainable") for row in job.recipe.rows if row.kind != "copies"
        )
    ):
        return {}
    sums: dict[str, float] = {}
    for row in job.recipe.rows:
        sums[row.kind] = sums.get(row.kind, 0) + DTYPE_BYTES[row.dtype] / row.per
    return {kind: f"{amount:.4g}Ψ" for kind, amount in sums.items()}


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return "100 %" if part == whole else f"{share:.1f} %" if share >= 0.05 else f"{share:.2g} %"


def _peak_rows(plan: Plan, amounts: Callable[..., Row]) -> list[Row]:
    """What is alive at each candidate's peak, by kind."""

    def at_peak(kinds: frozenset[str]) -> Callable[[Estimate], int]:
        def pick(candidate: Estimate) -> int:
            gpu = candidate.memory.gpu
            return sum(
                t.bytes for t in gpu.terms if t.kind in kinds and gpu.peak_moment in t.moments
            )

        return pick

    moments = tuple(SHORT_MOMENT[c.memory.gpu.peak_moment] for c in plan.candidates)
    rows = [
        Row(
            "known peak, at" if plan.candidates[0].memory.gpu.unknown else "peak, at",
            "",
            moments,
            "italic",
        )
    ]
    if plan.job.by_stage:
        rows.append(
            Row(
                "  on pipeline stage",
                "",
                tuple(f"{c.pipeline_stage} of {plan.job.parallel.pp}" for c in plan.candidates),
                "italic",
            )
        )
    rows.append(amounts("  states then", "", at_peak(STATE_KINDS)))
    for label, kinds in PEAK_ROWS:
        row = amounts(f"  {label}", "", at_peak(kinds))
        missing = [label in c.memory.gpu.unknown for c in plan.candidates]
        if any(missing) and kinds != {"logits"}:
            row = Row(
                row.label,
                "",
                tuple(
                    UNKNOWN if unknown else cell
                    for unknown, cell in zip(missing, row.cells, strict=True)
                ),
            )
        if set(row.cells) != {"0.00"}:
            rows.append(row)
    rows.append(amounts("  in all", "", lambda c: c.memory.gpu.peak_bytes, "bold"))
    if plan.job.zero.fragmentation_fraction:
        rows.append(
            amounts("with fragmentation", "", lambda c: c.memory.gpu.reserved_bytes, "bold")
        )
    usable = plan.job.cluster.usable_bytes
    words = {True: "yes", False: "no", None: UNKNOWN}
    if usable is not None:
        unknown = any(c.memory.gpu.unknown for c in plan.candidates)
        rows.append(
            amounts(
                "to spare, at most" if unknown else "to spare (-: lacking)",
                "",
                lambda c: usable - c.memory.gpu.reserved_bytes,
            )
        )
    if usable is not None or plan.verdict == "does_not_fit":
        rows.append(Row("fits", "", tuple(words[c.fits] for c in plan.candidates), "bold"))
    return rows


def traffic_rows(plan: Plan, size: int) -> list[Row]:
    """The traffic part of the table, in units of ``size`` bytes."""
    answers = [c.communication for c in plan.candidates]
    missing = unknown_sent(answers[0])
    rows = [
        Row(
            "traffic per step",
            "",
            tuple(f"{format_multiple(a.volume_params, 4)}Ψ" for a in answers),
        ),
        Row(
            "  of DDP",
            "",
            tuple(
                "-" if a.ratio_to_dp is None else f"{format_multiple(a.ratio_to_dp, 3)}×"
                for a in answers
            ),
            "dim",
        ),
        Row(
            "  known part sent" if missing else "  sent per GPU",
            "",
            tuple(
                UNKNOWN
                if missing and not a.sent_bytes_per_gpu
                else figure(a.sent_bytes_per_gpu, size)
                for a in answers
            ),
        ),
    ]
    if any(a.inter_node_bytes_per_gpu for a in answers):
        rows.append(
            Row(
                "    of it between nodes",
                "",
                tuple(figure(a.inter_node_bytes_per_gpu or 0, size) for a in answers),
                "dim",
            )
        )
    cluster = plan.job.cluster
    cards = cluster.network_cards
    if (
        cards
        and cards != cluster.gpus_of_a_node
        and any(a.inter_node_bytes_per_card for a in answers)
    ):
        rows.append(
            Row(
                "    by each network card",
                "",
                tuple(figure(a.inter_node_bytes_per_card or 0, size) for a in answers),
                "dim",
            )
        )
    rows += [Row(f"  sent by {name[0]}p", "", (UNKNOWN,) * len(answers)) for name in missing]
    if HOST_TRAFFIC in answers[0].unknown:
        rows += [
            Row(label, "", (UNKNOWN,) * len(answers))
            for label in ("  to and from host", "host memory per node")
        ]
    else:
        rows += _beside_rows(plan, size)
    return rows


def _beside_rows(plan: Plan, size: int) -> list[Row]:
    """What GPUs exchange with hosts and these with drives, and what a node's hold, where something
    lies there.
    """
    hosts, drives = (
        [c.memory.cpu for c in plan.candidates],
        [c.memory.nvme for c in plan.candidates],
    )
    answers = [c.communication for c in plan.candidates]

    def amounts(label: str, values: Iterable[int]) -> Row:
        return Row(label, "", tuple(figure(value, size) for value in values))

    rows = []
    if any(hosts) or any(drives):
        rows.append(amounts("  to and from host", (a.host_bytes_per_gpu for a in answers)))
    if any(drives):
        rows.append(amounts("  to and from drives", (a.nvme_bytes_per_gpu for a in answers)))
    for label, tiers in (("host memory per node", hosts), ("drives per node", drives)):
        if any(tiers):
            rows.append(amounts(label, (tier.bytes_per_node if tier else 0 for tier in tiers)))
        if any(tier and tier.high_bytes_per_node > tier.bytes_per_node for tier in tiers):
            rows.append(
                amounts(
                    "  page-locked, at most",
                    (tier.high_bytes_per_node if tier else 0 for tier in tiers),
                )
            )
        capacity = next(
            (tier.capacity_bytes for tier in tiers if tier and tier.capacity_bytes is not None),
            None,
        )
        if capacity is not None:
            rows.append(amounts("  a node has", (capacity for _ in tiers)))
    return rows


def unknown_sent(answer: Communication) -> list[str]:
    """What a GPU sends to others that is in no figure."""
    return [name for name in answer.unknown if name != HOST_TRAFFIC]


def _largest(plan: Plan) -> list[tuple[str, str]]:
    """What the peak of the candidate to take (or of the smallest one) mostly consists of, where
    activations are known.
    """
    chosen = [
        c
        for c in plan.candidates
        if plan.recommended is not None and c.name == plan.recommended.name
    ]
    candidate = (
        chosen[0] if chosen else min(plan.candidates, key=lambda c: c.memory.gpu.reserved_bytes)
    )
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
    """What network a candidate's traffic needs, for the one to take or the last."""
    chosen = [
        c
        for c in plan.candidates
        if plan.recommended is not None and c.name == plan.recommended.name
    ] or list(plan.candidates[-1:])
    there = plan.job.cluster.inter_node_bytes_per_second
    words = (
        network_words(chosen[0].time, there, bool(chosen[0].communication.inter_node_bytes_per_gpu))
        if chosen[0].time is not None
        else None
    )
    return [("network", words)] if words else []


def remarks(plan: Plan) -> list[tuple[str, str]]:
    """What stands below the table: labels and texts."""
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
