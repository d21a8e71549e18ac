"""Routed experts on ranks of their own: what they hold, over whom that is sharded, what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run
from zerocalc import load_model
from zerocalc.answers.document import plain
from zerocalc.estimator import estimate
from zerocalc.ledger import STATE_KINDS
from zerocalc.schedule import Collective
from zerocalc.sharding.rank import rank
from zerocalc.spec.job import Job

MIXTRAL = {"layers": 32, "hidden": 4096, "experts": 8, "top_k": 2, "ffn": 14336}
EXPERTS = 32 * 8 * 3 * 4096 * 14336
TOTAL = 46_702_792_704


def job(
    gpus: int = 64,
    training: dict[str, Any] | None = None,
    framework: str = "paper",
    zero: dict[str, Any] | None = None,
    **parallel: Any,
) -> Job:
    run = {"seq": 4096, **(training or {})}
    given: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "cluster": {"gpus": gpus},
        "training": run,
        "framework": framework,
        "zero": zero or {},
    }
    if parallel.get("tp", 1) > 1:
        parallel = {"sequence_parallel": True, **parallel}
    return Job.model_validate({**given, "parallel": parallel})


def sent(job: Job, *groups: str, stage: int = 0) -> list[Collective]:
    return [c for c in estimate(job, stage).communication.collectives if c.group in groups]


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([None, 1, 2, 4]),
    stage=st.sampled_from([0, 1, 2, 3]),
)
def test_every_tensor_is_divided_by_the_degrees_that_divide_it(
    tp: int, pp: int, ep: int, etp: int | None, stage: int
) -> None:
    if etp is not None and tp % etp:
        etp = 1
    asked = job(256, tp=tp, pp=pp, ep=ep, etp=etp, pipeline_stage=1)
    held = rank(asked)
    etp = etp or tp
    parts = {part.group: part for part in (held.parts or (held,))}
    layers = 32 // pp
    replicated, attention = (
        layers * (2 * 4096 + 8 * 4096),
        layers * (2 * 4096 * 4096 + 2 * 4096 * 1024),
    )
    embedding, head = 32_000 * 4096, 0 if pp > 1 else 32_000 * 4096 + 4096 * tp
    dense = replicated + (attention + embedding + head) // tp
    routed = EXPERTS // (pp * ep * etp)
    if not asked.experts_apart:
        assert held.parameters == dense + routed
        return
    assert parts["dp"].parameters == dense
    assert parts["edp"].parameters == routed
    assert parts["dp"].shards == 256 // (tp * pp)
    assert parts["edp"].shards == 256 // (pp * ep * etp)
    assert held.parameters == dense + routed
    gpu = estimate(asked, stage).memory.gpu
    bytes_of = (16, 4, 2, 0)[stage]
    shares = sum(
        bytes_of * part.parameters + -(-(16 - bytes_of) * part.parameters // part.shards)
        for part in held.parts
    )
    assert gpu.states_bytes == pytest.approx(shares, abs=8 * 2 * 5)
    assert gpu.states_bytes == sum(t.bytes for t in gpu.terms if t.kind in STATE_KINDS)


@given(
    tp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([1, 2]),
    gpus=st.sampled_from([16, 64]),
)
def test_a_group_of_one_sends_nothing(tp: int, ep: int, etp: int, gpus: int) -> None:
    asked = job(gpus, tp=tp, ep=ep, etp=min(etp, tp))
    groups = {c.group for stage in (0, 3) for c in estimate(asked, stage).communication.collectives}
    assert ("ep" in groups) == (ep > 1)
    assert ("etp" in groups) == (asked.experts_apart and asked.expert_tensor_parallel > 1)
    assert ("edp" in groups) == (asked.experts_apart and asked.expert_shards > 1)
    assert all(c.ranks > 1 for c in estimate(asked, 0).communication.collectives)


@pytest.mark.parametrize(("recompute", "calls"), [("none", 4), ("full", 6)])
@pytest.mark.parametrize("cp", [1, 2])
def test_four_all_to_alls_a_layer_and_micro_batch_six_with_recomputation(
    recompute: str, calls: int, cp: int
) -> None:
    asked = job(64, {"accumulation": 3, "micro_batch": 2, "recompute": recompute}, ep=8, cp=cp)
    every = sent(asked, "ep")
    assert {c.op for c in every} == {"all_to_all"}
    assert sum(c.count for c in every) == calls * 32 * 3
    one = 2 * 2 * 4096 // cp * 4096 * 2  # experts a token, sequences, tokens, hidden, bytes
    assert sum(c.sent_bytes for c in every) == calls * 32 * 3 * one * 7 // 8


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_sends_only_the_tokens_that_it_has(tp: int) -> None:
    """Sequence parallelism leaves a rank 1/tp of them; what an expert's ranks gather is as many for
    each of them.
    """
    tokens = 2 * 4096 // tp * 4096 * 2  # experts a token, tokens, hidden, bytes
    every = sent(job(64, tp=tp, ep=4, etp=2), "ep", "etp")
    assert {(c.group, c.op, c.tensor_bytes) for c in every} == {
        ("ep", "all_to_all", tokens),
        ("etp", "all_gather", 2 * tokens),
        ("etp", "reduce_scatter", 2 * tokens),
    }


def test_experts_divided_as_the_rest_and_not_dealt_are_as_without() -> None:
    assert plain(estimate(job(tp=2, ep=1, etp=2), 1)) == plain(estimate(job(tp=2), 1))


def test_dealt_experts_keep_as_many_tokens() -> None:
    """Each rank sends its tokens away and gets as many: fewer experts, the same activations."""
    kept = {
        ep: [t.bytes for t in estimate(job(ep=ep), 0).memory.gpu.terms if t.kind == "activations"]
        for ep in (1, 8)
    }
    assert kept[1] == kept[8]


def test_undivided_experts_see_a_ranks_share_of_the_tokens() -> None:
    def inputs(etp: int) -> int:
        arch = rank(job(tp=4, ep=2, etp=etp)).arch
        assert arch is not None
        return next(
            saved.bytes
            for module in arch.layer
            for saved in module.saved
            if saved.name == "expert inputs"
        )

    assert inputs(4) == 4 * inputs(1) == 2 * inputs(2) == 2 * 4096 * 4096 * 2


ROUTED = (
    "router probabilities",
    "chosen experts",
    "weights before they are divided, and their sum",
    "places of tokens",
)
"""Before Megatron's dispatcher gathers tokens: of those that a rank routes. Megatron-LM,
core/transformer/moe: router.py, token_dispatcher.py.
"""


@pytest.mark.parametrize(
    ("framework", "sequence_parallel", "etp", "routed", "weighed"),
    [
        (
            "megatron",
            True,
            None,
            4,
            1,
        ),  # tokens and their weights are gathered again over the ranks that divide an expert
        ("megatron", True, 2, 4, 2),
        ("megatron", True, 1, 4, 4),
        ("megatron", False, None, 1, 1),
        ("torchtitan", True, None, 1, 1),  # which gathers before the router
    ],
)
def test_a_rank_routes_the_tokens_that_it_enters_with(
    framework: str, sequence_parallel: bool, etp: int | None, routed: int, weighed: int
) -> None:
    asked = job(
        tp=4,
        ep=2 if etp else 1,
        etp=etp,
        framework=framework,
        sequence_parallel=sequence_parallel,
        zero={"stage": 2 if framework == "torchtitan" else 1},
    )
    arch = rank(asked).arch
    assert arch is not None
    rows = {saved.name: saved for module in arch.layer for saved in module.saved}
    assert {rows[name].divisor for name in ROUTED} == {routed}
    assert rows["chosen experts"].bytes == 4096 * 2 * 8 // routed
    assert {rows[name].divisor for name in ("expert inputs", "expert weights")} == {weighed}


def test_gradients_of_experts_are_reduced_by_those_who_hold_them() -> None:
    (reduced,) = [
        c for c in sent(job(tp=2, pp=2, ep=8, pipeline_stage=1), "edp") if c.tensor_bytes != 10**9
    ]
    assert (reduced.ranks, reduced.what) == (64 // (2 * 8 * 2), "gradients of experts")
    both = estimate(job(ep=8), 1).communication
    assert both.volume_params == 2
    assert both.ratio_to_dp == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ep": 3}, "3 does not divide the 8 experts"),
        ({"gpus": 12, "ep": 8}, "pp·ep·etp = 1·8·1 = 8 does not divide the 12 GPUs"),
        ({"tp": 2, "ep": 2, "sequence_parallel": False}, "needs sequence_parallel"),
        ({"tp": 2, "ep": 2, "etp": 4}, "4 does not divide tp = 2"),
        ({"ep": 2, "framework": "fsdp2"}, "expert parallelism is not supported by fsdp2"),
        ({"ep": 2, "framework": "megatron", "zero": {"stage": 3}}, "3 is not a stage of megatron"),
        (
            {"ep": 2, "framework": "deepspeed", "zero": {"stage": 3}},
            "3 of deepspeed does not support expert parallelism",
        ),
        ({"ep": 2, "zero": {"shard_group": 8}}, "hybrid sharding"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job(**given)


def test_models_without_experts_have_none_to_deal() -> None:
    for model in ({"params": "1B"}, "llama-3-8b", {"layers": 2, "hidden": 64, "heads": 2}):
        with pytest.raises(ValueError, match="needs a mixture-of-experts architecture"):
            Job.model_validate({"model": model, "cluster": {"gpus": 8}, "parallel": {"ep": 2}})


def test_configurations_say_over_how_many_ranks_experts_are_dealt() -> None:
    line = "export --model mixtral-8x7b --gpus 64 --tp 2 --sequence-parallel --seq 4096 --ep 4 --to"
    megatron = run(*line.split(), "megatron", "--etp", "1", "--stage", "1").out
    assert "--expert-model-parallel-size 4\n--expert-tensor-parallel-size 1\n" in megatron
    titan = run(*line.split(), "torchtitan", "--stage", "3").out
    assert "expert_parallel_degree = 4\nexpert_tensor_parallel_degree = 1\n" in titan
    without_tp = line.replace("--tp 2 --sequence-parallel ", "")
    speed = run(*without_tp.split(), "deepspeed", "--stage", "2").out
    assert json.loads(speed)["expert_parallel"] == {
        "enabled": True,
        "autoep_size": 4,
        "expert_tensor_parallel_size": 1,
    }
    assert refused(run(*without_tp.split(), "fsdp2", "--stage", "3")).startswith(
        "error: --ep: expert parallelism is not supported by fsdp2"
    )


def test_a_quantised_checkpoint_that_is_trained_as_a_whole_has_experts_to_deal() -> None:
    model = {**load_model("gpt-oss-20b").model_dump(mode="json"), "quantised": "mxfp4"}
    assert Job.model_validate(
        {"model": model, "cluster": {"gpus": 8}, "parallel": {"ep": 4}}
    ).experts_apart
    lora = [
        "plan",
        "--model",
        "gpt-oss-20b",
        "--gpus",
        "8",
        "--seq",
        "1024",
        "--lora-rank",
        "8",
        "--framework",
        "torch-ddp",
        "--quantise",
    ]
    assert "trains nothing over MXFP4" in " ".join(run(*lora, "mxfp4").out.split())
    assert "trains nothing over MXFP4" not in " ".join(run(*lora, "none").out.split())


@pytest.mark.parametrize(
    "more",
    [
        "--ep 8",
        "--ep 4 --tp 2 --sequence-parallel",
        "--ep 8 --framework megatron --pp 2",
        "--etp 1 --tp 2 --sequence-parallel",
    ],
)
def test_what_does_not_fit_gets_suggestions_that_can_be(more: str) -> None:
    line = "plan --model mixtral-8x7b --seq 4096 --micro-batch 4 --gpu a100-40g"
    ran = run(*f"{line} --gpus 16 {more} --json".split())
    assert ran.status == 0, ran.err
    document = json.loads(ran.out)
    assert document["verdict"] == "does_not_fit"
    for text in document["suggestions"]:
        flags, _, _ = text.partition(":")
        again = run(
            *f"{line} {'' if '--gpus' in flags else '--gpus 16'} {more} {flags}".replace(
                "--micro-batch 4", "" if "--micro-batch" in flags else "--micro-batch 4"
            ).split()
        )
        assert again.status == 0, again.err
