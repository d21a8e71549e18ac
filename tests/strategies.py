"""Hypothesis strategies for valid jobs of every kind that the library takes."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from zerocalc import presets
from zerocalc.quantities import LARGEST_BYTES, SMALLEST_AMOUNT
from zerocalc.spec.cluster import Gpu
from zerocalc.spec.job import Job

RECIPES = presets.names("recipes")
BARE_RECIPES = [
    name
    for name in RECIPES
    if all(row.get("of") != "factored" for row in presets.load("recipes", name)["rows"])
]
GPUS = [name for name in presets.names("gpus") if "usable_bytes" in presets.load("gpus", name)]
SMALLEST_GPU = min(
    Gpu.model_validate(presets.load("gpus", name)).usable_bytes or LARGEST_BYTES for name in GPUS
)

FEW = settings(max_examples=settings().max_examples // 4)
"""For tests of many cases, each of which draws examples of its own."""

Table = dict[str, Any]


@st.composite
def bare_models(draw: st.DrawFn) -> Table:
    """A number of parameters, perhaps partly frozen, perhaps cut into blocks."""
    params = draw(st.one_of(st.integers(1, 5000), st.integers(1, 10**13)))
    model: Table = {"params": params}
    if draw(st.booleans()):
        model["trainable"] = draw(st.integers(1, params))
    if draw(st.booleans()):
        model["blocks"] = draw(st.integers(1, min(params, 300)))
    return model


@st.composite
def architectures(draw: st.DrawFn, frozen: bool = True) -> Table:
    """A decoder of either kind; its heads are divisible by a power of two, so that tensor
    parallelism has something to divide.
    """
    kind = draw(st.sampled_from(["gpt2", "llama"]))
    groups = draw(st.sampled_from([1, 2, 3, 4]))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = groups * kv_heads
    head_dim = draw(st.sampled_from([8, 16, 64, 80]))
    model: Table = {
        "kind": kind,
        "layers": draw(st.integers(1, 24)),
        "hidden": heads * head_dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "vocab": draw(st.integers(1, 60_000)),
        "tied_embeddings": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "qkv_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
    }
    if kind == "gpt2":
        model["positions"] = 4096
        model["dropout"] = draw(st.sampled_from([0.0, 0.1]))
    if draw(st.booleans()):
        model["ffn"] = 4 * draw(st.integers(1, 1024))  # tensor parallelism divides it
    if draw(st.booleans()):
        model["head_dim"] = draw(st.sampled_from([8, 128]))
    if frozen and draw(st.booleans()):
        model["trainable"] = draw(
            st.integers(1, heads * 8 * heads * head_dim)
        )  # the queries alone are as many
    return model


@st.composite
def trainings(draw: st.DrawFn, with_seq: bool | None = None) -> Table:
    """How a batch is run; without a sequence length activations stay unknown."""
    training: Table = {
        "micro_batch": draw(st.integers(1, 4)),
        "accumulation": draw(st.sampled_from([1, 1, 2, 5])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "attention": draw(st.sampled_from(["flash", "eager"])),
    }
    if draw(st.booleans()) if with_seq is None else with_seq:
        training["seq"] = draw(st.integers(8, 4096))
    return training


@st.composite
def zeros(draw: st.DrawFn) -> Table:
    """Buffers, fragmentation and how gradients and weights travel, all stages shown."""
    zero: Table = {
        "grad_sync": draw(st.sampled_from(["reduce-scatter", "all-reduce"])),
        "defer_grad_sync": draw(st.booleans()),
        "reduce_dtype": draw(st.sampled_from([None, "bf16", "fp16", "fp32"])),
        "buffers": draw(st.sampled_from(["constant", "fused"])),
        "overlap_comm": draw(st.booleans()),
    }
    if zero["buffers"] == "constant" and draw(st.booleans()):
        zero["reduce_bucket_size"] = draw(st.integers(1, 10**10))
        zero["allgather_bucket_size"] = draw(st.integers(1, 10**10))
    if draw(st.booleans()):
        zero["defragment"] = False
        zero["fragmentation"] = draw(st.sampled_from([None, 0.0, 0.1, 0.25, 0.99]))
    return zero


@st.composite
def tables(
    draw: st.DrawFn,
    *,
    bare: bool | None = None,
    with_seq: bool | None = None,
    parallel: bool = True,
    shards: int | None = None,
    by_stage: bool = False,
) -> Table:
    """A valid job as the table that `Job.model_validate` takes: of one pipeline stage where those
    differ, or perhaps of the worst, ``by_stage``.
    """
    is_bare = draw(st.booleans()) if bare is None else bare
    model = draw(bare_models()) if is_bare else draw(architectures())
    training = draw(trainings(with_seq))
    tp = (
        draw(st.sampled_from([t for t in (1, 2, 4) if is_bare or model["heads"] % t == 0]))
        if parallel
        else 1
    )
    pp = draw(st.integers(1, min(4, model.get("layers", 4)))) if parallel else 1
    cp = (
        draw(st.sampled_from([1, 1, 2]))
        if parallel and shards is None and training.get("seq", 1) % 2 == 0
        else 1
    )
    own_dp = draw(st.one_of(st.integers(1, 8), st.integers(1, 2000))) if shards is None else shards
    zero = draw(zeros())
    degrees: Table = {"tp": tp, "pp": pp, "cp": cp}
    if (
        pp > 1
        and not is_bare
        and "trainable" not in model
        and not (by_stage and draw(st.booleans()))
    ):
        degrees["pipeline_stage"] = draw(st.integers(1, pp))
    if tp > 1 and training["recompute"] == "full" and draw(st.booleans()):
        zero["partition_activations"] = True
        zero["cpu_checkpointing"] = draw(st.booleans())
    elif tp > 1:
        degrees["sequence_parallel"] = training.get("seq", 0) % (tp * cp) == 0 and draw(
            st.booleans()
        )
    if not is_bare or "blocks" in model:
        zero["gather"] = draw(st.sampled_from(["all-gather", "broadcast"]))
    cluster: Table = {"gpus": own_dp * tp * pp * cp}
    if draw(st.booleans()):
        cluster["node"] = draw(st.sampled_from(presets.names("nodes")))
    else:
        cluster["gpus_per_node"] = draw(st.sampled_from([1, 4, 8, 72]))
        if draw(st.booleans()):
            cluster["gpu"] = draw(st.sampled_from(GPUS))
    if draw(st.booleans()):
        cluster["gpu_memory"] = draw(
            st.integers(
                SMALLEST_AMOUNT,
                SMALLEST_GPU if "gpu" in cluster or "node" in cluster else 2 * 10**11,
            )
        )
    recipe = draw(st.sampled_from(BARE_RECIPES if is_bare else RECIPES))
    return {
        "model": model,
        "cluster": cluster,
        "recipe": recipe,
        "training": training,
        "parallel": degrees,
        "zero": zero,
    }


def jobs(
    *,
    bare: bool | None = None,
    with_seq: bool | None = None,
    parallel: bool = True,
    shards: int | None = None,
    by_stage: bool = False,
) -> st.SearchStrategy[Job]:
    """Valid jobs."""
    return tables(
        bare=bare, with_seq=with_seq, parallel=parallel, shards=shards, by_stage=by_stage
    ).map(Job.model_validate)
