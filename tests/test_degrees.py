"""What context-parallel ranks send each other, and what tensor and pipeline parallelism send beside
layers.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc.estimator import estimate
from zerocalc.schedule import Collective
from zerocalc.spec.job import Job

LLAMA = {"kind": "llama", "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "vocab": 1000}
PAIR = 2 * 2 * 64  # keys and values of two heads of 64


def sent(
    gpus: int = 8,
    framework: str = "paper",
    model: Any = None,
    training: dict[str, Any] | None = None,
    **parallel: Any,
) -> list[Collective]:
    given = {
        "model": model or LLAMA,
        "cluster": {"gpus": gpus},
        "framework": framework,
        "training": {"seq": 1024, **(training or {})},
    }
    job = Job.model_validate({**given, "parallel": parallel})
    answer = estimate(job, job.stages[0]).communication
    assert "context-parallel traffic" not in answer.unknown
    return list(answer.collectives)


def of(collectives: list[Collective], group: str) -> list[Collective]:
    return [c for c in collectives if c.group == group]


@pytest.mark.parametrize(("recompute", "rounds"), [("none", 3), ("selective", 4), ("full", 4)])
@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 2), (2, 1)])
def test_keys_and_values_go_round(recompute: str, rounds: int, tp: int, kv_heads: int) -> None:
    """Forward the keys and values, backward those and their gradients: all but a rank's own, a
    layer and micro-batch, key-value heads only.
    """
    every = of(
        sent(
            8, training={"accumulation": 3, "micro_batch": 2, "recompute": recompute}, cp=4, tp=tp
        ),
        "cp",
    )
    assert {c.op for c in every} == {"send_recv"}
    assert (
        sum(c.sent_bytes for c in every)
        == rounds * 3 * (4 * 3) * (2 * 1024 // 4) * (2 * kv_heads * 64) * 2
    )


def test_pytorch_gathers_keys_and_values() -> None:
    """torch 2.13, _context_parallel/_attention.py: one gather a pass, fp32 gradients handed on as
    often as there are ranks.
    """
    calls = {(c.moment, c.op): c for c in of(sent(4, "torchtitan", cp=4), "cp")}
    local = 256 * PAIR * 2
    assert {key: (c.tensor_bytes, c.count) for key, c in calls.items()} == {
        ("forward", "all_gather"): (4 * local, 4),
        ("backward", "all_gather"): (4 * local, 4),
        ("backward", "send_recv"): (2 * local, 4 * 4),
    }


def test_ulysses_sends_heads() -> None:
    """Queries, keys, values and results to the ranks that have their heads, both ways (arXiv
    2309.14509 §3.2).
    """
    every = of(sent(4, "deepspeed", cp=4), "cp")
    assert {c.op for c in every} == {"all_to_all"}
    assert sum(c.sent_bytes for c in every) == 2 * 4 * (256 * (2 * 512 + PAIR) * 2) * 3 // 4


def test_layers_without_attention_leave_it_unknown() -> None:
    given = {
        "model": "mamba-2.8b",
        "cluster": {"gpus": 2},
        "parallel": {"cp": 2},
        "training": {"seq": 1024},
    }
    assert (
        "context-parallel traffic" in estimate(Job.model_validate(given), 0).communication.unknown
    )


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_embedding_head_and_loss(sequence_parallel: bool) -> None:
    """megatron-core 0.16.1, tensor_parallel/layers.py and cross_entropy.py."""
    training = {"accumulation": 3}
    ends = [
        c
        for c in of(sent(2, training=training, tp=2, sequence_parallel=sequence_parallel), "tp")
        if "cross_entropy" in c.source
    ]
    hidden, loss = 1024 * 512 * 2, 1024 * 4
    wanted = {
        True: [
            *[("reduce_scatter", hidden, 3)] * 2,
            *[("all_gather", hidden, 3)] * 3,
            ("all_reduce", loss, 9),
        ],
        False: [("all_reduce", hidden, 3), ("all_reduce", loss, 9), ("all_reduce", hidden, 3)],
    }
    assert sorted((c.op, c.tensor_bytes, c.count) for c in ends) == sorted(
        wanted[sequence_parallel]
    )


def test_stages_send_what_they_have() -> None:
    def of_stage(stage: int, group: str, **parallel: Any) -> list[tuple[str, str, int]]:
        every = sent(
            4,
            training={"accumulation": 4},
            pp=4 if group == "pp" else 2,
            pipeline_stage=stage,
            **parallel,
        )
        return [(c.moment, c.op, c.count) for c in of(every, group)]

    assert of_stage(1, "pp") == [("forward", "send_recv", 4)]
    assert of_stage(2, "pp") == [("forward", "send_recv", 4), ("backward", "send_recv", 4)]
    assert of_stage(4, "pp") == [("backward", "send_recv", 4)]
    first, last = (of_stage(stage, "tp", tp=2) for stage in (1, 2))
    assert (
        len(first) == len(last) - 1
    )  # all-reduces of two layers and of the embedding; and those of the head and the loss
    deep = {**LLAMA, "layers": 8}
    ring = [
        c
        for c in sent(
            4, model=deep, training={"accumulation": 4}, pp=4, interleave=2, pipeline_stage=1
        )
        if c.group == "pp"
    ]
    assert [(c.moment, c.count) for c in ring] == [("forward", 8), ("backward", 4)]


@pytest.mark.parametrize(("stage", "there"), [(1, True), (2, False), (4, True)])
def test_a_tied_embedding_has_two_copies_whose_gradients_are_added(stage: int, there: bool) -> None:
    every = sent(4, model={**LLAMA, "tied_embeddings": True}, pp=4, pipeline_stage=stage)
    tied = [(c.op, c.tensor_bytes, c.ranks) for c in every if "tied" in c.what]
    assert tied == ([("all_reduce", 1000 * 512 * 2, 2)] if there else [])


@given(
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2, 4]),
    framework=st.sampled_from(["paper", "torchtitan", "deepspeed"]),
)
def test_a_group_of_one_sends_nothing(tp: int, pp: int, cp: int, framework: str) -> None:
    every = sent(16, framework, tp=tp, pp=pp, cp=cp)
    assert {c.group for c in every} == {
        name
        for name, degree in (("tp", tp), ("pp", pp), ("cp", cp), ("dp", 16 // (tp * pp)))
        if degree > 1
    }
    assert all(c.ranks > 1 and c.sent_bytes > 0 for c in every)
