"""The lines above a plan's table: the verdict and the job."""

from __future__ import annotations

from rich.text import Text

from zerocalc.answers.planner import short_of, unsure
from zerocalc.quantities import GIB, figure, format_count, format_gib, format_multiple
from zerocalc.results import Estimate, Job, Plan, display_name


def verdict(plan: Plan) -> Text:
    """The first line when the GPU's memory is known."""
    known = plan.job.cluster.usable_bytes
    usable = known or 0
    chosen = plan.chosen
    if chosen is not None:
        gpu = chosen.memory.gpu
        name = display_name(chosen.name)
        if chosen.fits:
            headroom = format_gib(usable - gpu.reserved_bytes)
            fits = "fits on an even share of the pipeline" if plan.job.even_share else "fits"
            return Text(
                f"{name} {fits}: {figure(gpu.reserved_bytes, GIB)} of "
                f"{format_gib(usable)}, headroom {headroom}. {_traffic(chosen)}",
                "bold green",
            )
        takes = f"{figure(gpu.reserved_bytes, GIB)} of {format_gib(usable)}"
        condition = (
            f"not counting {', '.join(gpu.unknown)}"
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
            f"closest, is short by {lacks}.",
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
            f"Nothing fits: {display_name(best.name)}, the closest, is short by "
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


def header(plan: Plan) -> list[str]:
    """The job: model and GPUs, recipe and framework, batch where it is known, and choices."""
    job = plan.job
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
    kind = f" × {job.cluster.gpu.title}" if job.cluster.gpu else " GPU"
    kind += "s" if job.cluster.gpu is None and job.cluster.gpus > 1 else ""
    lines = [f"{_model(plan)}, {job.cluster.gpus:,}{kind}{degrees}, N_d {job.shards:,}"]
    lora = job.model.lora
    if job.model.trainable:
        lines[0] += f", {job.model.trainable:,} trainable"
    per_parameter = f"{job.trained_recipe.bytes_per_parameter:.4g} B/param"
    lines.append(
        f"recipe {job.recipe.name} ({per_parameter}{' of the adapters' if lora else ''}), "
        f"{job.framework.name}"
    )
    if lora:
        base = job.recipe.compute if job.model.quantised is None else job.model.quantised.name
        lines.append(
            f"LoRA rank {lora.rank} on {', '.join(lora.targets)}, adapters in "
            f"{job.adapter_dtype}, frozen base in {base}"
        )
    if t.seq and not job.model.is_bare:
        batch = (
            f"sequence length {t.seq:,}, micro-batch {t.micro_batch:,}, gradient accumulation "
            f"{t.accumulation:,}"
        )
        kernel = f", {t.attention} attention" if job.model.has_attention else ""
        lines.append(f"{batch}, recompute {_recomputed(job)}{kernel}{_layers(job)}")
    elif t.accumulation > 1:
        lines.append(f"gradient accumulation {t.accumulation:,}")
    choices = _choices(job)
    return [*lines, ", ".join(choices)] if choices else lines


def _model(plan: Plan) -> str:
    """The model in a few words: its title where it has one, and its parameters."""
    title, total = plan.job.model.title, plan.parameters.total
    count = f"{format_count(total)} parameter{'s' if total > 1 else ''}"
    return f"{title}, {count}" if title else count


def _recomputed(job: Job) -> str:
    """What is recomputed, as far as it is not the default."""
    t = job.training
    out: str = t.recompute
    if (
        t.recompute == "selective"
        and t.recompute_modules != type(t).model_fields["recompute_modules"].default
    ):
        out += f" ({', '.join(t.recompute_modules)})"
    return f"{out} of every {_nth(t.recompute_every)} layer" if t.recompute_every > 1 else out


def _nth(number: int) -> str:
    """An ordinal.

    >>> _nth(2), _nth(11), _nth(23)
    ('2nd', '11th', '23rd')
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else endings.get(number % 10, 'th')}"


def _layers(job: Job) -> str:
    """The layer and loss implementations, where they are not the framework's."""
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
