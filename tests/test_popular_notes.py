"""What popular notes on ZeRO get wrong, and the right side of each."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from tests.running import run_line
from zerocalc.estimator import estimate
from zerocalc.formulas.collectives import all_reduce_sent, ring_sent
from zerocalc.formulas.published import max_model
from zerocalc.presets import load
from zerocalc.results import Estimate
from zerocalc.spec.job import Job

PSI = 6_400_000_000
N = 64


def at(stage: int, gpus: int = N, **parts: Any) -> Estimate:
    return estimate(
        Job.model_validate({"model": {"params": PSI}, "cluster": {"gpus": gpus}, **parts}), stage
    )


@pytest.mark.parametrize(("stage", "whole", "divided"), [(1, 4, 12), (2, 2, 14)])
def test_stage_1_is_4_and_12_over_n_stage_2_is_2_and_14_over_n(
    stage: int, whole: int, divided: int
) -> None:
    """Not (2 + 16/N)Ψ and 16Ψ/N, which contradict the 31.4 and 16.6 GB printed beside them."""
    per_parameter = Fraction(at(stage).memory.gpu.states_bytes, PSI)
    assert per_parameter == whole + Fraction(divided, N)
    assert per_parameter != {1: 2 + Fraction(16, N), 2: Fraction(16, N)}[stage]


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_reduce_scatter_moves_half_of_an_all_reduce(ranks: int) -> None:
    size = 1_024_000
    reduce_scatter = ring_sent(ranks=ranks, tensor_bytes=size, count=1)
    all_gather = ring_sent(ranks=ranks, tensor_bytes=size, count=1)
    assert (
        2 * reduce_scatter
        == all_reduce_sent(ranks=ranks, tensor_bytes=size, count=1)
        == reduce_scatter + all_gather
    )


def test_stage_2_reduces_by_reduce_scatter_every_micro_batch_during_backward() -> None:
    answer = at(2, training={"accumulation": 4})
    gradients = [c for c in answer.communication.collectives if c.what.endswith("gradients")]
    assert {(c.op, c.moment, c.overlapped) for c in gradients} == {
        ("reduce_scatter", "backward", True)
    }
    assert all(c.count % 4 == 0 for c in gradients)
    assert not [
        c
        for c in at(2, zero={"grad_sync": "all-reduce"}).communication.collectives
        if c.op == "all_reduce"
    ]


def test_stage_1_with_all_reduce_is_3_psi_and_without_is_2_psi() -> None:
    """All-reduce, then all-gather of weights, is not "the same volume as data parallelism"."""
    assert at(1).communication.volume_params == 2
    assert at(1, zero={"grad_sync": "all-reduce"}).communication.volume_params == 3
    assert at(1, zero={"grad_sync": "all-reduce"}).communication.ratio_to_dp == 1.5


ARCHITECTURE = {"layers": 4, "hidden": 512, "heads": 8}


def test_partitioned_activations_need_tensor_parallel_ranks() -> None:
    job = {
        "model": ARCHITECTURE,
        "cluster": {"gpus": 8},
        "training": {"seq": 128, "recompute": "full"},
        "zero": {"partition_activations": True},
    }
    with pytest.raises(
        ValidationError, match=r"needs tp above 1.*data-parallel ranks hold different data"
    ):
        Job.model_validate(job)
    ran = run_line(
        "plan --layers 4 --hidden 512 --heads 8 --seq 128 --gpus 8 --recompute full --pa"
    )
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: --partition-activations: ")
    assert "needs --tp above 1" in ran.err


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_partitioned_activations_are_split_over_tp_not_dp(tp: int) -> None:
    job: dict[str, Any] = {
        "model": ARCHITECTURE,
        "cluster": {"gpus": 64},
        "training": {"seq": 128, "recompute": "full"},
        "parallel": {"tp": tp},
    }

    def stored(**zero: bool) -> int:
        answer = estimate(Job.model_validate({**job, "zero": zero}), 0)
        (checkpoints,) = [t for t in answer.memory.gpu.terms if t.name == "checkpoints"]
        return checkpoints.bytes

    assert stored() == tp * stored(partition_activations=True)


def test_a_bucket_size_counts_elements() -> None:
    """``allgather_bucket_size: 2e8`` is 400 MB at 16 bits, not 200."""
    (bucket,) = [
        t
        for t in at(1, zero={"allgather_bucket_size": "2e8"}).memory.gpu.terms
        if t.name == "all-gather bucket"
    ]
    assert bucket.bytes == 400_000_000


def test_largest_models_in_theory() -> None:
    """At 32 GB and N_d = 64: 2B, 7.64B, 14.4B, 128B; the popular column mixes measured with
    theoretical ones.
    """
    largest = [max_model(memory_bytes=32 * 10**9, shards=64, stage=stage) for stage in range(4)]
    assert largest == [
        2 * 10**9,
        32 * 10**9 * 64 // (4 * 64 + 12),
        32 * 10**9 * 64 // (2 * 64 + 14),
        128 * 10**9,
    ]
    assert [round(psi / 1e9, 2) for psi in largest] == [2.0, 7.64, 14.42, 128.0]
    for stage, psi in enumerate(largest):
        states = estimate(
            Job.model_validate({"model": {"params": psi}, "cluster": {"gpus": 64}}), stage
        ).memory.gpu.states_bytes
        assert (
            abs(32 * 10**9 - states) <= 16
        )  # at most one parameter more or less, as shards are rounded up


@pytest.mark.parametrize(
    ("recipe", "moment_bytes"),
    [
        ("mixed-adam", 8),
        ("mixed-adam-bf16-moments", 4),
        ("adam-8bit", Fraction(2) + Fraction(2 * 4, 256)),
    ],
)
def test_moments_need_not_be_fp32(recipe: str, moment_bytes: Fraction | int) -> None:
    terms = at(0, recipe=recipe).memory.gpu.terms
    assert Fraction(sum(t.bytes for t in terms if "moment" in t.name), PSI) == moment_bytes


def test_an_fp32_gradient_is_a_row_of_some_recipes() -> None:
    """20 bytes per parameter are a recipe of their own, and its gradients are gradients: sharded
    from stage 2.
    """
    assert at(0, recipe="mixed-adam-both-grads").memory.gpu.states_bytes == 20 * PSI
    assert at(0).memory.gpu.states_bytes == 16 * PSI
    rows = {row["name"]: row for row in load("recipes", "mixed-adam-both-grads")["rows"]}
    assert (
        rows["fp32 gradients"]["kind"],
        rows["fp32 gradients"]["dtype"],
        rows["fp32 gradients"]["sharded_from"],
    ) == ("gradients", "fp32", 2)
