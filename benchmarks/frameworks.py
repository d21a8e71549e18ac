"""What each framework holds and sends, stage by stage, and what is not modelled, as Markdown: what
docs/frameworks.md holds.

python benchmarks/frameworks.py > docs/frameworks.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from zerocalc.spec.framework_rows import Holding, Move

from zerocalc import presets
from zerocalc.spec.framework import Framework, FrameworkStage

DATA = Path(__file__).parents[1] / "tests" / "data"

INTRODUCTION = """# Frameworks

Printed by `python benchmarks/frameworks.py` from presets/frameworks; a test refuses this page when it is stale.

P is the number of parameters, T of those that are trained (all, unless some are frozen; with LoRA the adapters'), N the ranks that share one copy
of the states. Gradients, what they pass through and what is gathered after the optimizer's step are of what is trained; gathers for computing are of
all. Where a bare count is trained (`--trainable`), gradients of a part are an upper bound: as much of T as fits into it.

A recipe's rows (weights, gradients, optimizer states) are divided by N from the stage on that the recipe says; what a framework holds beside them,
and what it sends, is below. Moments: load (at rest), forward (its end), loss, backward start, backward end, step.
"""

MOMENTS = {
    "load": "load",
    "forward": "forward",
    "loss": "loss",
    "backward_start": "backward start",
    "backward_end": "backward end",
    "step": "step",
}
PARTS = {
    "all": "P",
    "trainable": "T",
    "persistent": "tensors up to persistence_threshold",
    "partitioned": "tensors above persistence_threshold",
    "root": "what is outside the layers",
    "embedding": "the embedding",
    "layer": "one layer",
    "layers": "all layers",
    "head": "the head",
    "tensor": "the largest tensor",
    "touched": "tensors with a part in a rank's share, whole, for each rank of a node",
    "edges": "what tensors on a share's edges have beyond it, and the gradient in the making",
}
PADS = {
    "none": "shards are ⌈P/N⌉",
    "first_dimension": "each tensor's first dimension is rounded up to a multiple of N",
    "tensor": "each tensor is rounded up to a multiple of N",
    "flat": "each unit's tensors are one flat buffer, rounded up to a multiple of N",
    "flat_twice": "all tensors are one flat buffer, rounded up to a multiple of 2N",
    "aligned": (
        "tensors start at multiples of 64 elements, the buffer ends at a multiple of lcm(N, 128)"
    ),
}
CALLS = {
    "unit": "each unit",
    "whole": "once for all",
    "tensor": "each tensor",
    "bucket": "buckets of reduce_bucket_size",
    "arrival": "buckets of 25 MiB, the first of 1 MiB",
    "window": "as the windows decide",
    "hops": "each tensor, in 4 bits: within a node, then between nodes; vectors as they are",
}
OFTEN = {
    "unshard": "micro-batch (in a pipeline: step)",
    "micro_batch": "micro-batch",
    "step": "step",
}

LEFT_OUT: dict[str, list[str]] = {
    "deepspeed": [
        "Control collectives (overflow flag, gradient norm, the check that all ranks saw "
        "the same trace): up to 3 calls of 8 bytes a step. "
        "The first two steps, in which the order of modules is not known yet and nothing "
        "is prefetched.",
        "A module without tensors beside an MLP's activation (GPT-2's dropout) is one more "
        "place to prefetch from: a call may be split in "
        "two; bytes stay.",
        "Layers that are not called in the order of their list, and experts called one by "
        "one, change the trace from step to step; "
        "DeepSpeed asks for "
        "`set_z3_leaf_module` then, which is how experts are counted.",
        "recompute_every: recomputed layers are taken as the first ones of their kind, not "
        "as every k-th; bytes differ by a window at most.",
        "Pipeline stages and bare parameter counts: windows and edges of buckets are not "
        "followed; backward gathers what is beyond "
        "max_reuse_distance, and gradients on a share's edges are not counted (two tensors "
        "at most). Nor are windows with "
        "adapters of embeddings, experts or a tied head; with hpZ the calls of later "
        "micro-batches are one where two are said.",
        "Adapters under zero.Init, which is asked for before they are made: they are not "
        "cast, and stay in the dtype that PEFT gave them.",
        "A coalesced gather's output, beside the tensors copied out of it: up to "
        "prefetch_bucket_size elements and a tensor, for the time "
        "of the copy.",
        "Stage 1 with overlap_comm: the gradient of a tensor larger than a bucket is freed "
        "one bucket later (one tensor).",
        "Stage 1 in fp32: a rank whose share lies within one tensor keeps that tensor's "
        "gradient and makes no copy: the largest tensor, "
        "less P/N, at most.",
        "contiguous_gradients off: gradients that wait and their flat copy are counted as "
        "a full bucket each, an upper bound.",
        "Buckets where tensors are listed in another order than assumed (norms of "
        "attention heads): sizes of two calls differ by these tensors.",
        "qgZ's buffers: a tensor in 4 bits, twice. MiCS (until DeepSpeed 0.19.8, which "
        "refuses it): read from its source, not recorded; its "
        "hierarchical gathers are not followed. ZenFlow, Muon and compiled stage 3: not offered.",
        "stage3_model_persistence_threshold, stage3_use_all_reduce_for_fetch_params (an "
        "all-reduce for each all-gather), stage3_allgather_sequential "
        "(each tensor by itself, once more where it is used again), "
        "stage3_module_granularity_threshold, parameter_alignment: named, not modelled.",
        "OPT's layers call the parts of their MLP themselves, a module less to prefetch "
        "from: a tensor or two more may be gathered.",
        "round_robin_gradients: bytes stay; sizes of calls with "
        "use_multi_rank_bucket_allreduce off, and of a tensor larger than a bucket, differ.",
        "Stages 1 and 2 of families that list all norms first (GPT-NeoX) or the final one "
        "before the layers (OPT): sizes of calls differ by these.",
        "fp16 with grad_accum_dtype fp32 at stage 1: bytes as recorded, but in buckets of "
        "reduce_bucket_size; memory is taken as bf16's.",
        "qwZ: the int8 copy beside the weights made of it, a gather's elements in bytes.",
        "Offload: host memory is pinned by 9 recorded runs; transfers, page-locked "
        "rounding and what lies on drives are as the source says, not "
        "recorded. While gradients of a tensor are made fp32 on their way to the host, "
        "that part of it is not counted. Together with "
        "grad_accum_dtype, hpZ, qwZ or qgZ it is refused; SuperOffload, ratio below 1, and "
        "GPUDirect Storage are not offered.",
        "The allocator, NCCL's buffers and kernels' workspace: nothing was recorded on a GPU.",
    ],
    "fsdp1": [
        "Memory beside states is taken as FSDP2's, which was measured. Clipping: one "
        "all-reduce of 4 bytes.",
        "use_orig_params is taken as True, which starts each tensor at 16 bytes; False "
        "packs them: at most 7 elements a tensor less in each "
        "gather and reduction. Adam's states have no such gaps in either case. NO_SHARD's "
        "states are counted without them.",
        "With recomputation that stops early (not reentrant) the adapter of a layer's last "
        "projection is gathered once more, not twice, for "
        "backward: its second matrix, r times its outputs a layer.",
        "Adapters in one unit with their layer (use_orig_params without PEFT's "
        "fsdp_auto_wrap_policy): gradients of the whole unit would be "
        "made and reduced.",
    ],
    "fsdp2": [
        "A root that is told to reshard too (fully_shard(model, "
        "reshard_after_forward=True), and accelerate before 1.14): backward gathers it "
        "again, all that is outside the layers.",
        "accelerate from 1.14 on: where embedding and head are not tied, the embedding is "
        "a unit and norm with head another, as torchtitan's: "
        "backward gathers the embedding again. Learned positions are a unit of their own.",
        "set_requires_all_reduce (hybrid sharding that reduces within groups each "
        "micro-batch and across them once a step): counted each time.",
        "Offload is as the source says, not recorded; the fp32 shard of a layer that is on "
        "its way to a gather is not counted.",
        "The recomputed layer's own working set in block backward: up to 1.4 % of the peak "
        "in recorded runs.",
        "Clipping: one all-reduce of 4 bytes. The allocator, NCCL's buffers and kernels' "
        "workspace.",
    ],
    "torchtitan": ["Clipping and metrics: all-reduces of a few bytes."],
    "megatron": [
        "Transformer Engine's and Apex's buffers: only the local specification was recorded.",
    ],
    "torch-ddp": [
        "Buffers (batch norms, masks): broadcast before each synced forward, as many bytes "
        "as they have.",
        "The first step uses one bucket. With find_unused_parameters buckets stay as they "
        "are made first: tensors as the model lists them.",
        "T5: the sizes of two calls differ by a norm. Pipeline stages: buckets of a "
        "stage's share of each tensor.",
    ],
    "paper": ["What implementations differ in: that is what the other frameworks are for."],
}


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name in presets.names("frameworks"):
        framework = Framework.model_validate(presets.load("frameworks", name))
        parts.append("\n".join(_framework(framework)))
    return "\n".join(parts)


def _framework(framework: Framework) -> Iterator[str]:
    yield f"## {framework.title or framework.name} (`--framework {framework.name}`)\n"
    yield f"{framework.source}\n"
    if framework.options is not None:
        yield f"Options: {', '.join(framework.options) or 'none'}.\n"
    if framework.casts:
        yield (
            "All parameters are cast to compute's dtype, adapters too, unless the recipe is "
            "one of autocast.\n"
        )
    if framework.adapters == "each":
        yield "Each matrix of an adapter is a unit of its own.\n"
    pinned = _pinned(framework.name)
    if pinned:
        yield f"{pinned}\n"
    for stage in framework.stages:
        yield from _stage(stage)
    yield "Not modelled:\n"
    yield from [f"- {line}" for line in LEFT_OUT[framework.name]]
    yield ""


def _pinned(name: str) -> str:
    """How many recorded runs the tests compare with."""
    runs = [
        run
        for run in json.loads((DATA / "framework_runs.json").read_text("utf-8"))["runs"]
        if run["framework"] == name
    ]
    held = [
        run
        for run in json.loads((DATA / "framework_memory.json").read_text("utf-8"))["runs"]
        if run["framework"] == name
    ]
    calls = sum(run["pinned"] == "calls" for run in runs)
    if not runs:
        return ""
    how = (
        "call by call"
        if calls == len(runs)
        else f"{calls} of them call by call, the others by their sums"
    )
    text = f"Recorded runs: {len(runs)} of traffic, {how}"
    return f"{text}; {len(held)} of memory." if held else f"{text}."


def _stage(stage: FrameworkStage) -> Iterator[str]:
    yield f"### Stage {stage.stage} ({stage.name})\n"
    if stage.published:
        yield (
            "As [ZeRO] describes, by ZeRO's options. Gradients are reduced once a "
            f"{OFTEN[stage.sync]}; {PADS[stage.pads]}.\n"
        )
        yield from _offloads(stage)
        return
    if stage.meaning:
        yield f"It is {stage.meaning}.\n"
    other = "" if stage.states is None else f" States are sharded as at stage {stage.states}."
    if stage.states_if_overlapped is not None:
        other += (
            " While reduction overlaps backward and nothing accumulates, they are sharded as "
            f"at stage {stage.states_if_overlapped}."
        )
    until = MOMENTS[stage.gradients_until]
    unless = "".join(f", unless {option} is set" for option in stage.gradients_unless)
    since = (
        f" from {MOMENTS[stage.gradients_from]} on, in one buffer," if stage.gradients_from else ""
    )
    if stage.waiting_dtype is not None:
        until += (
            " (while defer_grad_sync puts their reduction off: whole, in the dtype: "
            f"{stage.waiting_dtype})"
        )
    yield (
        f"Gradients are reduced once a {OFTEN[stage.sync]} and live{since} until "
        f"{until}{unless}; {PADS[stage.pads]}.{other}\n"
    )
    if stage.holds:
        yield "| holds | of | from | to | only |\n|---|---|---|---|---|"
        yield from [_held(row) for row in stage.holds]
        yield ""
    if stage.moves:
        yield (
            "| sends, in | what | calls | dtype | a | over | only |\n|---|---|---|---|---|---|---|"
        )
        yield from [_sent(row, stage) for row in stage.moves]
        yield ""
    yield from _offloads(stage)


WAYS = {"down": "to the host", "up": "to the GPU"}
SHARES = {"share": "P / N", "touched": "whole tensors with a part in the share"}
COPIES = {**OFTEN, "later": "micro-batch but the first"}


def _offloads(stage: FrameworkStage) -> Iterator[str]:
    """What a stage can keep elsewhere, and the copies that this costs."""
    offload = stage.offloading
    if offload is None:
        return
    where = {"optimizer": offload.optimizer, "parameters": offload.params}
    what = "; ".join(f"{name}: {', '.join(devices)}" for name, devices in where.items() if devices)
    both = " (both together)" if offload.together else ""
    fate = "go with it" if offload.gradients == "moved" else "are held there as the rows above say"
    kept = (
        f" {offload.params_in_cpu:,} elements of a share stay in host memory when "
        "parameters go to drives."
        if offload.params_in_cpu
        else ""
    )
    most = (
        f" Host memory at most {offload.factor:g} times as much, for buffers."
        if offload.factor > 1
        else ""
    )
    yield (
        f"Can be kept elsewhere{both}: {what}. Sharded gradients {fate}.{kept}{most} "
        f"({offload.source})\n"
    )
    yield "| copies of gradients | of | dtype | a | only |\n|---|---|---|---|---|"
    for row in offload.transfers:
        often = COPIES[stage.sync if row.per == "reduction" else row.per]
        yield (
            f"| {WAYS[row.way]} | {SHARES[row.of]} | {row.dtype} | {often} | "
            f"{f'where gradients are {row.only}' if row.only else ''} |"
        )
    yield ""
    if offload.params:
        yield (
            "Of parameters that lie elsewhere, 1/N of each gather is copied to the GPU "
            f"(dtype: {offload.gathers_in}).\n"
        )


def _held(row: Holding) -> str:
    part = PARTS[row.of] + (
        ", what is trained of it"
        if row.what == "gradients" and row.of not in ("tensor", "edges")
        else ""
    )
    if row.what == "gradients" and row.of == "tensor":
        part = "the largest trained tensor"
    if row.windowed:
        beyond = "" if row.first == "backward_end" else ", and what the pass has beyond it"
        part = (
            f"what the windows have gathered then{beyond} (unknown modules: up to "
            "max_live_parameters)"
        )
    elif row.largest is not None:
        part = f"{row.largest}" if row.whole else f"{part}, up to {row.largest}"
    if row.elements is not None:
        part = f"{row.elements:,} elements"
    if row.sharded:
        part += " / secondary_group" if row.over == "secondary" else " / N"
    times = f"{row.copies} × " if row.copies > 1 else ""
    if row.if_overlapped > 1:
        times = f"(overlapped: {row.if_overlapped} ×) "
    conditions = [BESIDE[row.beside]] if row.beside != "gpu" else []
    conditions += [f"with {row.when} {row.device}"] if row.device else _conditions(row)
    if row.accumulated:
        conditions.append("from forward on with accumulation")
    if row.after_layers:
        conditions.append("beyond the last layer's working set")
    if row.only is not None:
        conditions.append(
            f"with {row.only}"
            if row.only == "16-bit gradients"
            else f"where gradients are {row.only}"
        )
    return (
        f"| {row.name} | {times}{part}, {row.dtype} | {MOMENTS[row.first]} | "
        f"{MOMENTS[row.last]} | {'; '.join(conditions)} |"
    )


def _sent(row: Move, stage: FrameworkStage) -> str:
    what = row.what if row.of == "all" else f"{row.what}: {PARTS[row.of]}"
    calls = CALLS[row.by]
    if row.units:
        calls = f"each {', '.join(row.units)}"
    if row.by == "bucket":
        calls += (
            ", tensors as gradients come"
            if row.order == "arrival"
            else ", tensors in the model's order unless overlapped"
        )
    if row.fitting is not None:
        calls += (
            ", those that a contiguous bucket takes"
            if row.fitting
            else ", those that no contiguous bucket takes"
        )
    often = OFTEN[stage.sync if row.per == "reduction" else row.per]
    conditions = _conditions(row)
    if row.beyond is not None:
        conditions.append(f"unknown modules: beyond {row.beyond}")
    return (
        f"| {row.moment} | {row.op} of {what} | {calls} | {row.dtype} | {often} | {row.over} | "
        f"{'; '.join(conditions)} |"
    )


WORDS = {"grad_sync": "grad_sync all-reduce"}
BESIDE = {
    "host": "on the host",
    "optimizer": "where the optimizer lies",
    "params": "where the parameters lie",
}


def _conditions(row: Move | Holding) -> list[str]:
    needed = (row.when,) if isinstance(row.when, str) else row.when or ()
    return [f"with {WORDS.get(option, option)}" for option in needed] + [
        f"without {WORDS.get(option, option)}" for option in row.unless
    ]


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
