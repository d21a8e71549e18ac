"""What each framework holds and sends in a step of one example job, and what is not modelled, as
Markdown: what docs/frameworks.md holds.

python benchmarks/frameworks.py > docs/frameworks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zerocalc import presets
from zerocalc.estimator import estimate
from zerocalc.formulas.formula import Formula
from zerocalc.frameworks import program_of
from zerocalc.ledger import MOMENTS, Term
from zerocalc.results import Estimate
from zerocalc.schedule import Collective
from zerocalc.spec.framework import Framework, FrameworkStage
from zerocalc.spec.job import Job

DATA = Path(__file__).parents[1] / "tests" / "data"
GIB = 2**30
EXAMPLE: dict[str, Any] = {
    "model": "llama-3-8b",
    "cluster": {"gpus": 64, "node": "dgx-h100"},
    "training": {"seq": 4096},
}
COMMAND = "zerocalc explain --model llama-3-8b --node dgx-h100 --gpus 64 --seq 4096"

INTRODUCTION = f"""# Frameworks

Printed by `python benchmarks/frameworks.py` from the ledger of one example job, from the facts in `presets/frameworks` and from the limits that each
program in `zerocalc/frameworks` states. A test refuses this page when it is stale.

The job is Llama 3 8B on 64 GPUs (8 nodes of 8 H100), sequences of 4,096, micro-batch 1, accumulation 1. Each framework has its own default recipe and
layer implementation. `{COMMAND} --framework NAME --stage N` prints
the same entries with all numbers and sources.

- **What a GPU holds**: GiB at the largest instant of each moment. A row sums the terms of one name; activations and logits are one row each. The CUDA
  context is left out.
- **What a GPU sends**: one row for each operation. `a call` is the largest tensor of one call.
"""

PADDING = {
    "none": "Shards are ⌈elements / N_d⌉.",
    "first_dimension": "The first dimension of each tensor is rounded up to a multiple of N_d.",
    "tensor": "Each tensor is rounded up to a multiple of N_d.",
    "flat": "The tensors of a unit are one flat buffer, rounded up to a multiple of N_d.",
    "flat_twice": "All tensors are one flat buffer, rounded up to a multiple of 2·N_d.",
    "aligned": (
        "Tensors start at multiples of 64 elements, and the buffer ends at a multiple of "
        "lcm(N_d, 128)."
    ),
}
REDUCED = {"step": "once a step", "micro_batch": "once a micro-batch"}
SUMMED = ("activations", "logits")
LEFT_OUT = ("runtime",)


def page() -> str:
    """The whole page."""
    parts = list(_symbols())
    for name in presets.names("frameworks"):
        parts.append("\n".join(_framework(name)))
    return "\n".join([INTRODUCTION, *parts])


def job(name: str) -> Job:
    """The example under a framework."""
    return Job.model_validate({**EXAMPLE, "framework": name})


def estimates() -> Iterator[Estimate]:
    """The example's estimates, framework by framework and stage by stage."""
    for name in presets.names("frameworks"):
        asked = job(name)
        yield from [estimate(asked, stage.stage) for stage in asked.framework.stages]


def _symbols() -> Iterator[str]:
    """What the formulas' symbols stand for."""
    found: dict[str, list[str]] = {}
    for answer in estimates():
        held: list[Formula[Any]] = [made.formula for made in _held(answer)]
        for formula in (*held, *[each.formula for each in answer.communication.collectives]):
            for symbol, keyword in formula.symbols.items():
                words = found.setdefault(symbol, [])
                if keyword not in words:
                    words.append(keyword)
    yield "| symbol | stands for |\n|---|---|"
    for symbol, keywords in found.items():
        yield f"| {symbol} | {', or '.join(word.replace('_', ' ') for word in keywords)} |"
    yield ""


def _framework(name: str) -> Iterator[str]:
    asked, program = job(name), program_of(name)
    framework = asked.framework
    yield f"## {framework.title} (`--framework {name}`)\n"
    yield f"Source: {framework.source}.\n"
    yield f"- Defaults: recipe `{framework.recipe}`, layers of `{framework.implementation}`."
    if framework.options is not None:
        options = ", ".join(f"`{option}`" for option in framework.options)
        yield f"- ZeRO options: {options or 'none'}."
    yield from [f"- {line}" for line in (*_facts(framework), *_recorded(name))]
    yield ""
    for stage in framework.stages:
        yield from _stage(stage, PADDING[program.pads(stage.stage)], estimate(asked, stage.stage))
    yield "### Not modelled\n"
    yield from [f"- {line}" for line in program.limits]
    yield ""


def _facts(framework: Framework) -> Iterator[str]:
    if framework.casts:
        yield "All parameters are cast to the compute dtype, adapters too, except under autocast."
    if framework.adapters == "each":
        yield "Each matrix of an adapter is a unit of its own."
    if framework.experts_at:
        stages = ", ".join(str(stage) for stage in framework.experts_at)
        yield f"Expert parallelism at stages {stages}."
    if framework.note:
        yield f"{framework.note[:1].upper()}{framework.note[1:]}."


def _recorded(name: str) -> Iterator[str]:
    """How many recorded runs the tests compare with."""
    traffic = _runs("framework_runs", name)
    if traffic:
        calls = sum(run["pinned"] == "calls" for run in traffic)
        yield f"Recorded runs: {len(traffic)} of communication, {calls} of them call by call."
    for file in ("framework_memory", "fsdp_memory"):
        if held := _runs(file, name):
            yield f"Recorded runs of memory: {len(held)}."


def _runs(file: str, name: str) -> list[dict[str, Any]]:
    """The runs of a framework in a file of recorded ones."""
    path = DATA / f"{file}.json"
    runs = json.loads(path.read_text("utf-8"))["runs"] if path.is_file() else []
    return [run for run in runs if run["framework"] == name]


def _stage(stage: FrameworkStage, padding: str, answer: Estimate) -> Iterator[str]:
    yield f"### Stage {stage.stage} ({stage.name})\n"
    meaning = f"{stage.meaning[:1].upper()}{stage.meaning[1:]}. " if stage.meaning else ""
    overlap = "overlaps" if stage.overlaps else "does not overlap"
    line = f"{meaning}Gradients are reduced {REDUCED[stage.sync]}. "
    line += f"Communication {overlap} compute by default. {padding}"
    if stage.offload is not None:
        where = {"optimizer states": stage.offload.optimizer, "parameters": stage.offload.params}
        tiers = [f"{what} to {' or '.join(to)}" for what, to in where.items() if to]
        line += f" Offload: {', '.join(tiers)}{' (together)' if stage.offload.together else ''}."
    yield f"{line}\n"
    yield from _memory(answer)
    yield from _sent(answer.communication.collectives)


def _held(answer: Estimate) -> list[Term]:
    return [made for made in answer.memory.gpu.terms if made.kind not in LEFT_OUT]


def _memory(answer: Estimate) -> Iterator[str]:
    """What is held, a row for each name, GiB at each moment."""
    rows: dict[str, list[Term]] = {}
    for made in _held(answer):
        rows.setdefault(made.kind if made.kind in SUMMED else made.name, []).append(made)
    yield f"| holds | formula | {' | '.join(moment.replace('_', ' ') for moment in MOMENTS)} |"
    yield f"|---|---|{'---:|' * len(MOMENTS)}"
    for name, terms in rows.items():
        texts = dict.fromkeys(made.formula.text for made in terms)
        text = "tensor by tensor" if name in SUMMED else "; ".join(texts)
        sizes = [sum(t.bytes for t in terms if moment in t.moments) for moment in MOMENTS]
        yield f"| {name} | {text} | {' | '.join(_gib(size) for size in sizes)} |"
    everything = [sum(t.bytes for t in _held(answer) if m in t.moments) for m in MOMENTS]
    yield f"| **total** | | {' | '.join(_gib(size) for size in everything)} |"
    yield ""


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else ""


def _sent(collectives: Iterable[Collective]) -> Iterator[str]:
    """What is sent, a row for each operation on one kind of tensor."""
    rows: dict[tuple[str, ...], list[Collective]] = {}
    for each in collectives:
        key = (each.moment, each.op, each.what, each.dtype, f"{each.group} {each.ranks}")
        rows.setdefault(key, []).append(each)
    yield "| in | sends | calls | a call, MiB | group | formula | GiB sent |"
    yield "|---|---|---:|---:|---|---|---:|"
    for (moment, op, what, dtype, group), calls in rows.items():
        largest = max(each.tensor_bytes for each in calls) / 2**20
        sent, count = sum(each.sent_bytes for each in calls), sum(each.count for each in calls)
        yield (
            f"| {moment} | {op} of {what}, {dtype} | {count} | {largest:,.2f} | {group} | "
            f"{calls[0].formula.text} | {sent / GIB:.2f} |"
        )
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
