"""What frameworks send and hold, beside what was recorded of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import run
from tests.strategies import FEW
from zerocalc import Job, estimate, presets
from zerocalc.results import Estimate
from zerocalc.spec.recipe import DTYPE_BYTES

RUNS = json.loads((Path(__file__).parent / "data" / "framework_runs.json").read_text("utf-8"))[
    "runs"
]
Calls = Counter[tuple[Any, ...]]
TOY = {
    "kind": "llama",
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 352,
    "vocab": 1000,
}


def answer(run: dict[str, Any]) -> Estimate:
    job = {**run["job"], "zero": {**run["job"].get("zero", {}), "stage": run["stage"]}}
    return estimate(
        Job.model_validate(
            {
                "model": run["model"],
                "cluster": {"gpus": run["gpus"], **run.get("cluster", {})},
                "framework": run["framework"],
                **job,
            }
        )
    )


def ours(of: Estimate) -> Calls:
    """Calls by moment, operation, dtype, ranks and elements."""
    calls: Calls = Counter()
    for c in of.communication.collectives:
        calls[c.moment, c.op, c.dtype, c.ranks, c.tensor_bytes // DTYPE_BYTES[c.dtype]] += c.count
    return calls


def recorded(run: dict[str, Any]) -> Calls:
    calls: Calls = Counter()
    for c in run["collectives"]:
        for elements, count in c["sizes"].items():
            calls[c["moment"], c["op"], c["dtype"], c["ranks"], int(elements)] += count
    return calls


def totals(calls: Calls) -> Calls:
    out: Calls = Counter()
    for (*kind, elements), count in calls.items():
        out[tuple(kind)] += elements * count
    return out


@pytest.mark.parametrize(
    "run", RUNS, ids=[f"{run['source']}-{run['name']}".replace(" ", "-") for run in RUNS]
)
def test_what_is_sent_is_what_was_recorded(run: dict[str, Any]) -> None:
    sent, seen = ours(answer(run)), recorded(run)
    assert (sent == seen) if run["pinned"] == "calls" else (totals(sent) == totals(seen))


HELD = [run for run in RUNS if run.get("states")]


@pytest.mark.parametrize(
    "run", HELD, ids=[f"{run['source']}-{run['name']}".replace(" ", "-") for run in HELD]
)
def test_states_are_what_was_recorded(run: dict[str, Any]) -> None:
    terms = answer(run).memory.gpu.terms
    kinds = {"params": "weights", "grads": "gradients", "optimizer": "optimizer"}
    assert {
        name: sum(t.bytes for t in terms if t.kind == kinds[name]) for name in run["states"]
    } == run["states"]


WAITING = [run for run in RUNS if "between_micro_batches" in run]


@pytest.mark.parametrize(
    "run", WAITING, ids=[f"{run['source']}-{run['name']}".replace(" ", "-") for run in WAITING]
)
def test_gradients_that_wait_are_what_was_recorded(run: dict[str, Any]) -> None:
    """Whole until they are reduced, then a rank's share."""
    terms = [t for t in answer(run).memory.gpu.terms if t.kind == "gradients"]
    assert (
        sum(t.bytes for t in terms if "backward_end" in t.moments) == run["between_micro_batches"]
    )
    optimizer = sum(t.bytes for t in answer(run).memory.gpu.terms if t.kind == "optimizer")
    assert sum(t.bytes for t in terms if "step" in t.moments) == optimizer // 2


STAGES = [
    (name, stage["stage"])
    for name in presets.names("frameworks")
    for stage in presets.load("frameworks", name)["stages"]
]


TEMPORARIES = {
    (framework, stage)
    for framework, stage in STAGES
    if framework in {"fsdp1", "fsdp2", "torchtitan", "torch-ddp"}
}
"""Trained by PyTorch's own AdamW, whose foreach form makes one tensor as large as the weights that
it updates (torch, optim/adam.py: _multi_tensor_adam).
"""


@pytest.mark.parametrize(("framework", "stage"), STAGES)
def test_the_optimizers_temporaries_are_as_large_as_the_weights_it_updates(
    framework: str, stage: int
) -> None:
    job = {
        "model": TOY,
        "cluster": {"gpus": 8},
        "framework": framework,
        "training": {"seq": 128},
        "zero": {"stage": stage},
    }
    terms = estimate(Job.model_validate(job)).memory.gpu.terms
    temporary = [t for t in terms if t.name == "optimizer temporaries"]
    weights = sum(t.bytes for t in terms if t.kind == "weights")
    assert [(t.bytes, t.moments) for t in temporary] == (
        [(weights, ("step",))] if (framework, stage) in TEMPORARIES else []
    )


@pytest.mark.parametrize(("framework", "stage"), STAGES)
@FEW
@given(gpus=st.integers(1, 512), accumulation=st.integers(1, 4))
def test_sums_and_a_group_of_one(framework: str, stage: int, gpus: int, accumulation: int) -> None:
    job = {
        "model": TOY,
        "cluster": {"gpus": gpus},
        "framework": framework,
        "training": {"seq": 128, "accumulation": accumulation},
        "zero": {"stage": stage},
    }
    of = estimate(Job.model_validate(job))
    gpu = of.memory.gpu
    for moment, total in gpu.moments.items():
        assert total == sum(
            t.bytes for t in gpu.terms if moment in t.moments and t.kind != "fragmentation"
        )
    assert gpu.peak_bytes == max(gpu.moments.values())
    assert all(t.bytes >= 0 for t in gpu.terms)
    if gpus == 1:
        assert of.communication.sent_bytes_per_gpu == 0


@pytest.mark.parametrize(
    "framework",
    [
        name
        for name in presets.names("frameworks")
        if presets.load("frameworks", name).get("options") is not None
    ],
)
def test_a_choice_that_a_framework_does_not_have_is_refused(framework: str) -> None:
    unknown = {"reduce_to_owner": True} if framework == "paper" else {"gather": "broadcast"}
    job = {"model": TOY, "cluster": {"gpus": 8}, "framework": framework, "zero": unknown}
    with pytest.raises(ValueError, match=f"not supported by {framework}"):
        Job.model_validate(job)


def test_copies_of_shards_are_kept_alike() -> None:
    model = {**TOY, "vocab": 1024, "ffn": 384}  # nothing to round up

    def sent(group: int) -> Estimate:
        zero = {"stage": 3, "shard_group": group}
        return estimate(
            Job.model_validate(
                {"model": model, "cluster": {"gpus": 64}, "framework": "fsdp2", "zero": zero}
            )
        )

    whole, hybrid = sent(64), sent(8)
    assert hybrid.memory.gpu.states_bytes == 8 * whole.memory.gpu.states_bytes
    assert {c.ranks for c in hybrid.communication.collectives} == {8}
    across = [c for c in hybrid.communication.collectives if c.op == "all_reduce"]
    assert sum(c.tensor_bytes * c.count for c in across) * 8 == sum(
        c.tensor_bytes * c.count
        for c in hybrid.communication.collectives
        if c.op == "reduce_scatter"
    )


@pytest.mark.parametrize("stage", [1, 2])
def test_offload_has_the_contiguous_bucket_anyway(stage: int) -> None:
    def at(contiguous: bool) -> Estimate:
        zero = {
            "stage": stage,
            "contiguous_gradients": contiguous,
            "reduce_to_owner": True,
            "offload_optimizer": "cpu",
        }
        return estimate(
            Job.model_validate(
                {"model": TOY, "cluster": {"gpus": 4}, "framework": "deepspeed", "zero": zero}
            )
        )

    assert (at(True).memory, at(True).communication) == (at(False).memory, at(False).communication)


FRAMEWORK_STAGES = [
    (name, stage["stage"])
    for name in presets.names("frameworks")
    for stage in presets.load("frameworks", name)["stages"]
    if stage["stage"]
]


@pytest.mark.parametrize(("framework", "stage"), FRAMEWORK_STAGES)
def test_an_end_of_a_model_may_hold_nothing(framework: str, stage: int) -> None:
    """A tied head without a norm before it, and the middle of a pipeline."""

    def held(model: Any, gpus: int, parallel: dict[str, int]) -> int:
        job = {
            "model": model,
            "cluster": {"gpus": gpus},
            "framework": framework,
            "parallel": parallel,
            "training": {"seq": 128, "accumulation": 4},
        }
        return estimate(
            Job.model_validate({**job, "zero": {"stage": stage}})
        ).memory.gpu.states_bytes

    assert held("bart-large", 4, {}) > 0
    tied = {**TOY, "layers": 8, "tied_embeddings": True}
    assert all(held(tied, 8, {"pp": 4, "pipeline_stage": at}) > 0 for at in range(1, 5))


def test_experts_fewer_than_ranks_are_warned_of() -> None:
    """FSDP2 cuts tensors along their first dimension: 8 experts over 64 ranks are 56 ranks'
    padding.
    """
    line = "plan --model mixtral-8x7b --gpus 64 --framework fsdp2 --seq 512"
    assert "fsdp2 pads tensors to 64 equal shards, which adds 676% to the parameters" in " ".join(
        run(*line.split()).out.split()
    )
    assert "pads tensors to" not in run(*f"{line} --stage 3 --shard-group 8".split()).out
    assert "pads tensors to" not in run(*line.replace("mixtral-8x7b", "llama-3-8b").split()).out


def test_torchtitans_pipelines_reduce_and_gather_once_a_step() -> None:
    """torch 2.13, distributed/pipelining: one UNSHARD a stage, no resharding and no reduction
    before the last micro-batch.
    """
    job = {
        "model": "llama-3-8b",
        "cluster": {"gpus": 32},
        "framework": "torchtitan",
        "zero": {"stage": 2},
        "training": {"seq": 2048, "accumulation": 8},
    }
    piped = estimate(Job.model_validate({**job, "parallel": {"pp": 4}}))
    calls = [
        (c.op, c.count)
        for c in piped.communication.collectives
        if c.group == "dp" and "layer" in c.what
    ]
    assert calls == [("all_gather", 8), ("reduce_scatter", 8)]  # the layers of a stage
    flat = estimate(Job.model_validate(job))
    assert {c.count for c in flat.communication.collectives if "layer" in c.what} == {32 * 8}
    assert (
        estimate(
            Job.model_validate(
                {**job, "parallel": {"pp": 4}, "zero": {"stage": 2, "defer_grad_sync": True}}
            )
        ).memory
        == piped.memory
    )
