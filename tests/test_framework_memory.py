"""What frameworks hold, beside what was recorded of them, and which choices they are refused or
given.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_frameworks import answer
from zerocalc import Job, estimate
from zerocalc.formulas.buffers import filled, touched
from zerocalc.sharding.call_order import tensors
from zerocalc.sharding.rank import on_stage, rank

FILE = json.loads((Path(__file__).parent / "data" / "framework_memory.json").read_text("utf-8"))
RUNS: list[dict[str, Any]] = FILE["runs"]
SCALARS = 1024
"""Bytes that are left out: see the file."""


def beyond_share_of_first_rank(run: dict[str, Any]) -> int:
    """Elements; ours are those of the rank with most of them, what was recorded is rank 0's."""
    job = Job.model_validate(
        {
            "model": run["model"],
            "cluster": {"gpus": run["gpus"]},
            "framework": run["framework"],
            **run["job"],
        }
    )
    arch = rank(job).arch
    assert arch is not None
    sizes, listed, _ = tensors(job, arch)
    gpus: int = run["gpus"]
    share = -(-sum(sizes) // (2 * gpus)) * 2
    again = sizes[listed[0]] if job.training.accumulation > 1 else 0
    return touched([sizes[number] for number in listed], gpus, share)[0][0] + again - share


@pytest.mark.parametrize("run", RUNS, ids=[run["name"].replace(" ", "-") for run in RUNS])
def test_what_is_held_is_what_was_recorded(run: dict[str, Any]) -> None:
    gpu = answer(run).memory.gpu
    for moment, recorded in run["moments"].items():
        held = {
            t.name: t.bytes
            for t in gpu.terms
            if moment in t.moments and t.name not in run.get("not_seen", ())
        }
        edges = "gradients outside the rank's shard"
        if edges in held:
            assert held[edges] >= 2 * beyond_share_of_first_rank(run)
            held[edges] = 2 * beyond_share_of_first_rank(run)
        assert (
            0 <= recorded - run.get("more_seen", {}).get(moment, 0) - sum(held.values()) <= SCALARS
        )
    for name, recorded in run.get("terms", {}).items():
        assert [t.bytes for t in gpu.terms if t.name == name] == [recorded]


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), most=st.integers(1, 60))
def test_buckets_hold_all_and_overflow_only_for_one_tensor(sizes: list[int], most: int) -> None:
    counts = filled(sizes, most)
    assert sum(counts) == len(sizes)
    ends = list(accumulate(counts))
    groups = [sizes[end - count : end] for end, count in zip(ends, counts, strict=True)]
    assert all(sum(group) <= most or len(group) == 1 for group in groups)
    assert all(sum(group) + after[0] > most for group, after in pairwise(groups))


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), shards=st.integers(1, 12))
def test_tensors_with_a_part_in_a_share(sizes: list[int], shards: int) -> None:
    share = -(-sum(sizes) // shards)
    ends = list(accumulate(sizes))
    for shard, (amount, first) in enumerate(touched(sizes, shards, share)):
        inside = [
            n
            for n, end in enumerate(ends)
            if end > shard * share and end - sizes[n] < (shard + 1) * share
        ]
        assert amount == sum(sizes[n] for n in inside)
        assert first == (0 in inside)


TOY = {
    "kind": "llama",
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 352,
    "vocab": 1000,
}
MODELS: tuple[dict[str, Any], ...] = (
    TOY,
    {**TOY, "lora": {"rank": 4}},
    {"params": 10**7},
    {"params": 10**7, "blocks": 4},
    {**TOY, "tied_embeddings": True},
)
ZERO = st.fixed_dictionaries(
    {
        "stage": st.integers(0, 3),
        "reduce_bucket_size": st.integers(1, 10**6),
        "overlap_comm": st.none() | st.booleans(),
        "contiguous_gradients": st.booleans(),
        "grad_accum_dtype": st.sampled_from([None, "fp32"]),
        "max_live_parameters": st.integers(0, 10**6),
        "max_reuse_distance": st.integers(0, 10**6),
        "prefetch_bucket_size": st.integers(0, 10**6),
        "persistence_threshold": st.integers(0, 10**5),
    }
)


@given(
    zero=ZERO,
    model=st.sampled_from(MODELS),
    gpus=st.sampled_from([1, 2, 8, 48]),
    accumulation=st.integers(1, 3),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    extra=st.sampled_from(
        ["secondary_group", "quantised_weights", "quantised_gradients", "reduce_to_owner", None]
    ),
    recompute=st.sampled_from(["none", "full"]),
    reentrant=st.booleans(),
)
def test_any_choice_of_options(
    zero: dict[str, Any],
    model: dict[str, Any],
    gpus: int,
    accumulation: int,
    tp: int,
    pp: int,
    extra: str | None,
    recompute: str,
    reentrant: bool,
) -> None:
    if gpus < tp * pp:
        tp = pp = 1
    if extra == "quantised_gradients" and (gpus % 8 or tp * pp > 1):
        extra = None
    if (
        extra is not None
        and (zero["stage"] in (1, 2)) == (extra == "reduce_to_owner")
        and zero["stage"]
    ):
        zero = {**zero, extra: gpus // (tp * pp) if extra == "secondary_group" else True}
    job = {
        "model": model,
        "cluster": {"gpus": gpus},
        "framework": "deepspeed",
        "zero": zero,
        "parallel": {"tp": tp, "pp": pp},
        "training": {"accumulation": accumulation, "recompute": recompute, "reentrant": reentrant},
    }
    of = estimate(Job.model_validate(job))
    gpu = of.memory.gpu
    assert gpu.peak_bytes == max(gpu.moments.values())
    assert all(t.bytes >= 0 for t in gpu.terms)
    shards = gpus // (tp * pp)
    sent = [
        c
        for c in of.communication.collectives
        if c.group == "dp" and c.moment == "backward" and "gradients" in c.what
    ]
    assert bool(sent) == (shards > 1)
    if sent and "lora" not in model and not zero.get("quantised_gradients"):
        asked = Job.model_validate(job)
        own = rank(on_stage(asked, of.pipeline_stage) if of.pipeline_stage else asked).parameters
        rounds = accumulation if zero["stage"] > 1 else 1
        assert (
            2 * own * rounds
            <= sum(c.tensor_bytes * c.count for c in sent)
            <= 2 * (own + 100 * shards) * rounds
        )


def of_toy(stage: int, *, accumulation: int = 1, model: dict[str, Any] = TOY, **zero: Any) -> Any:
    job = {
        "model": model,
        "cluster": {"gpus": 8, "gpus_per_node": 1},
        "framework": "deepspeed",
        "zero": {"stage": stage, "reduce_bucket_size": 1000, **zero},
        "training": {"accumulation": accumulation},
    }
    return estimate(Job.model_validate(job)).memory


def test_zero_3_has_one_buffer_of_gradients_however_many_micro_batches() -> None:
    """stage3.py: grad_partitions_flat_buffer, which is there from the start."""
    assert of_toy(3).gpu.moments == of_toy(3, accumulation=4).gpu.moments


def test_zero_1_in_fp32_overlaps_nothing() -> None:
    """engine.py takes BF16_Optimizer, which has whole gradients in both dtypes."""
    plain, overlapped = (
        of_toy(1, grad_accum_dtype="fp32", overlap_comm=overlap).gpu for overlap in (False, True)
    )
    assert overlapped.moments == plain.moments
    gradients = [t.bytes for t in plain.terms if t.kind == "gradients"]
    assert len(gradients) == 2
    assert max(gradients) == 2 * min(gradients)


def test_offload_copies_gradients_of_trained_tensors() -> None:
    """stage_1_and_2.py: largest_param_numel, of the optimizer's parameters."""
    model = {**TOY, "lora": {"rank": 4, "targets": "q_proj"}}
    memory = of_toy(2, model=model, offload_optimizer="cpu")
    copied = "gradient to copy on the CPU"
    assert [t.bytes for t in memory.cpu.terms if t.name == copied] == [2 * 4 * 128]


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ({"secondary_group": 3}, "3 does not divide the 8 ranks"),
        ({"secondary_group": 4, "stage": 2}, "needs stage 3, not 2"),
        ({"quantised_weights": True, "stage": 1}, "needs stage 3, not 1"),
        ({"quantised_gradients": True, "stage": 1}, "needs stage 3, not 1"),
        ({"quantised_gradients": True, "stage": 3}, "shards over whole nodes of 16 ranks"),
        ({"reduce_to_owner": True, "stage": 3}, "needs stage 1 or 2, not 3"),
        ({"grad_accum_dtype": "bf16"}, "fp32"),
    ],
)
def test_options_that_mean_nothing_are_refused(zero: dict[str, Any], words: str) -> None:
    job = {
        "model": TOY,
        "cluster": {"gpus": 8, "gpus_per_node": 16},
        "framework": "deepspeed",
        "zero": zero,
    }
    with pytest.raises(ValueError, match=words):
        Job.model_validate(job)
