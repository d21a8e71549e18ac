"""Ours beside published tables and measured activations, as Markdown: what docs/accuracy.md holds.

python benchmarks/accuracy.py > docs/accuracy.md; python benchmarks/accuracy.py --json >
docs/accuracy.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import overview
import public_runs
import throughput

from zerocalc.estimator import estimate
from zerocalc.memory.activations import kept_bytes
from zerocalc.model.build import architecture
from zerocalc.model.module import layout
from zerocalc.papers.tables import all_tables, summary
from zerocalc.spec.job import Job

MEASURED = Path(__file__).parents[1] / "tests" / "data" / "measured_activations.json"
LAYERS = 4

INTRODUCTION = """# Accuracy

Printed by `python benchmarks/accuracy.py`; a test refuses this page when it is stale. Nothing here is fitted: where a measurement differs, the
mechanism that makes the difference is named, or the difference stays.
"""

OVERVIEW = """
## Overview

Runs that others measured on GPUs. Nothing was measured on a GPU by us. Settings: what was added to the settings that the run states. `--no-defragment`
adds 30 % of what comes and goes in a step, for the allocator's fragmentation; by default none is added. `--workspaces` adds cuBLAS workspaces. Errors
are absolute; the mean is signed.
"""

TABLES = """
## Published tables

`zerocalc paper TABLE` shows every cell. A cell without a verdict is one that the source does not print exactly.

| table | |
|---|---|"""

ACTIVATIONS = """
## Activations

Bytes that PyTorch keeps for backward, by run, beside the sum of the tensors that zerocalc lists: in one layer, and outside the layers with what the
loss keeps. The runs were made on fake tensors, without a GPU; `tests/data/measured_activations.json` holds them. What differs is known:

- PyTorch's CPU build keeps LayerNorm's statistics in 16 bits where a GPU keeps fp32 (which is what we count): up to 0.03 %.
- A layer's random state and token indices, 8 to 24 bytes a layer or token, are not listed.
- Adapters under autocast: the 16-bit copies of their own weights are states, not activations (up to 0.5 %).
- The sines and cosines that all layers share were measured with the first layer of transformers' classes, and are left out here.
- Outside the layers megatron-core keeps masks and token ids, up to 0.1 %.

`dims`: hidden, heads/key-value heads, ffn, vocabulary.

| implementation | dims | recipe | s | b | tp | attention | more | layer, measured | ours | error | outside, measured | ours | error |
|---|---|---|---:|---:|---|---|---|---:|---:|---:|---:|---:|---:|"""


LOSSES = """
## Head and loss

Peaks of live bytes in forward and in backward around the head and its loss, the head's weight and input aside. What falls short: a chunked loss
on a trained head holds 3.3 % more in backward than is listed, and with few tokens the head's own gradient is the larger peak (1.1 %).

| loss | tokens | hidden | vocabulary | head | forward, measured | ours | error | backward, measured | ours | error |
|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|"""


class Run(NamedTuple):
    """A measured run, and our job for it."""

    source: str
    job: Job
    layer_bytes: int
    outside_bytes: int | None


def runs() -> Iterator[Run]:
    """The measured runs, as jobs."""
    data = json.loads(MEASURED.read_text("utf-8"))
    for run in data["runs"]:
        given = run["job"]
        own = {name: given[name] for name in ("dropout", "lora") if given.get(name) is not None}
        model = {"layers": LAYERS, **data["models"][given["model"]], **own}
        rest = {
            name: given[name]
            for name in ("recipe", "implementation", "training", "parallel")
            if name in given
        }
        cluster = {"gpus": given.get("parallel", {}).get("tp", 1)}
        yield Run(
            run["source"],
            Job.model_validate({"model": model, "cluster": cluster, **rest}),
            run["layer_bytes"],
            run.get("outside_bytes"),
        )


def predicted(run: Run) -> tuple[int, int]:
    """Bytes that one layer keeps (the mean of all), and what is kept outside the layers."""
    job = run.job
    arch = architecture(job.model, layout(job, job.training.seq or 0), job.implementation)
    assert arch is not None
    layer = sum(count * kept_bytes(modules) for count, modules in arch.groups) // arch.layers
    terms = estimate(job, 0).memory.gpu.terms
    kept_by_loss = next(
        t.bytes for t in terms if t.kind == "logits" and {"forward", "loss"} <= set(t.moments)
    )
    buffer = sum(t.bytes for t in terms if t.name == "shared buffer")
    shared = sum(
        saved.bytes
        for module in arch.before
        for saved in module.saved
        if saved.name == "sines and cosines"
    )
    met_in_layers = shared if run.source == "huggingface" else 0
    return layer, kept_bytes(arch.before) + kept_bytes(
        arch.after
    ) + kept_by_loss + buffer - met_in_layers


def losses() -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    """Measured peaks around the loss, and ours in forward and backward."""
    for run in json.loads(MEASURED.read_text("utf-8"))["losses"]:
        hidden = run["hidden"]
        model: dict[str, Any] = {
            "kind": "llama",
            "layers": 1,
            "hidden": hidden,
            "heads": hidden // 128,
            "vocab": run["vocab"],
        }
        if run["frozen_head"]:
            model["lora"] = {"rank": 8}
        given = {
            "model": model,
            "cluster": {"gpus": 1},
            "loss": run["loss"],
            "training": {"seq": run["tokens"]},
        }
        terms = [
            t for t in estimate(Job.model_validate(given), 0).memory.gpu.terms if t.kind == "logits"
        ]
        forward, backward = (
            sum(t.bytes for t in terms if moment in t.moments) for moment in ("forward", "loss")
        )
        yield run, (forward, backward)


def words(run: Run) -> list[str]:
    """The run's settings as cells."""
    job = run.job
    m, t, p = job.model, job.training, job.parallel
    more = (
        [
            t.recompute
            if t.recompute != "selective"
            else f"selective {', '.join(t.recompute_modules)}"
        ]
        if t.recompute != "none"
        else []
    )
    more += [f"every {t.recompute_every}"] if t.recompute_every > 1 else []
    more += [f"dropout {m.dropout}"] if m.dropout else []
    more += [str(m.activation)] if m.kind == "gpt2" else []
    if m.lora:
        more.append(
            f"LoRA r {m.lora.rank} {m.lora.dtype} {' '.join(m.lora.targets)}"
            + (f" dropout {m.lora.dropout}" if m.lora.dropout else "")
        )
    dims = f"{m.hidden} {m.heads}/{m.kv_heads} {m.ffn} {m.vocab}"
    tp = f"{p.tp} + SP" if p.sequence_parallel else str(p.tp)
    return [
        job.implementation.name,
        dims,
        job.recipe.name,
        str(t.seq),
        str(t.micro_batch),
        tp,
        t.attention,
        ", ".join(more),
    ]


def compared(measured: int | None, ours: int) -> tuple[list[str], float | None]:
    """The cells of a measurement, and our error in percent."""
    if measured is None:
        return ["", "", ""], None
    error = 100 * (ours - measured) / measured
    return [f"{measured:,}", f"{ours:,}", f"{error:+.3f} %"], error


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION + OVERVIEW, *overview.table(), TABLES]
    lines += [f"| {table.name} | {summary(table)} |" for table in all_tables()]
    lines.append(ACTIVATIONS)
    errors: dict[str, tuple[list[float], list[float]]] = {}
    for run in runs():
        cells = words(run)
        found = errors.setdefault(f"{cells[0]}, {run.source.split()[0]}", ([], []))
        for measured, ours, known in zip(
            (run.layer_bytes, run.outside_bytes), predicted(run), found, strict=True
        ):
            more, error = compared(measured, ours)
            cells += more
            known.extend([] if error is None else [abs(error)])
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| implementation, measured by | runs | layer: median error | largest | outside: "
        "median error | largest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, (layer, outside) in errors.items():
        rest = f"{median(outside):.3f} % | {max(outside):.3f} %" if outside else "| "
        lines.append(
            f"| {name} | {len(layer)} | {median(layer):.3f} % | {max(layer):.3f} % | {rest} |"
        )
    lines.append(LOSSES)
    for peaks, (forward, backward) in losses():
        cells = [
            peaks["loss"],
            *(str(peaks[key]) for key in ("tokens", "hidden", "vocab")),
            "frozen" if peaks["frozen_head"] else "trained",
        ]
        cells += (
            compared(peaks["peak_forward_bytes"], forward)[0]
            + compared(peaks["peak_backward_bytes"], backward)[0]
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *public_runs.section(), *throughput.section()]) + "\n"


def unrounded() -> str:
    """The peaks of real runs, in bytes, and how long steps took."""
    return (
        json.dumps({**public_runs.unrounded(), "throughput": throughput.unrounded()}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    print(unrounded() if sys.argv[1:] == ["--json"] else page(), end="")
