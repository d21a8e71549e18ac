"""FLOPs, where traffic runs, and how long a step takes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run, run_line
from zerocalc import Job, estimate
from zerocalc.results import Timing
from zerocalc.sharding.rank import rank
from zerocalc.sharding.work import Work, work
from zerocalc.traffic.placement import hops, placed

PUBLISHED = Path(__file__).parent / "data" / "published"
SMALL: dict[str, Any] = {
    "kind": "llama",
    "layers": 4,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 700,
    "vocab": 1000,
}


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def job(*, framework: str = "paper", **parts: dict[str, Any]) -> Job:
    base: dict[str, dict[str, Any]] = {
        "model": SMALL,
        "cluster": {"gpus": 16, "node": "dgx-h100"},
        "training": {"seq": 512},
        "zero": {"stage": 3},
    }
    return Job.model_validate(
        {
            "framework": framework,
            **{name: {**base.get(name, {}), **parts.get(name, {})} for name in {*base, *parts}},
        }
    )


def shape(row: dict[str, str]) -> dict[str, int]:
    return {
        "layers": int(row["layers"]),
        "hidden": int(row["hidden"]),
        "heads": int(row["heads"]),
        "vocab": 51200,
        "positions": 2048,
    }


def time_of(**parts: Any) -> Timing:
    time = estimate(job(**parts)).time
    assert time is not None
    return time


def work_of(given: Job) -> Work:
    found = work(given, rank(given))
    assert found is not None
    return found


@pytest.mark.parametrize("row", rows("megatron_sc21_table1"), ids=lambda row: row["params_B"])
def test_flops_are_what_the_paper_prints(row: dict[str, str]) -> None:
    given = Job.model_validate(
        {
            "model": shape(row),
            "cluster": {"gpus": 1},
            "training": {"seq": 2048, "micro_batch": int(row["gbs"]), "recompute": "full"},
        }
    )
    found = work_of(given)
    assert (found.forward + found.backward + found.recomputed) / 1e18 == pytest.approx(
        float(row["rec_FLOPs_per_iter_e18"]), abs=5.1e-5
    )


@pytest.mark.parametrize("row", rows("megatron_sc21_table1"), ids=lambda row: row["params_B"])
def test_throughput_of_a_tuned_system_within_what_its_schedule_explains(
    row: dict[str, str],
) -> None:
    """[Meg] Table 1 by one efficiency for all: within 22 %, for the smallest rows run small
    products and the largest interleave their pipeline.
    """
    tp, pp, gpus = int(row["tp"]), int(row["pp"]), int(row["gpus"])
    accumulation = int(row["gbs"]) * tp * pp // gpus
    training = {"seq": 2048, "accumulation": accumulation, "recompute": "full"}
    given = Job.model_validate(
        {
            "model": shape(row),
            "cluster": {"gpus": gpus, "node": "dgx-a100"},
            "framework": "megatron",
            "zero": {"stage": 0},
            "parallel": {"tp": tp, "pp": pp},
            "training": training,
        }
    )
    time = estimate(given).time
    assert time is not None
    assert time.hfu * 312 == pytest.approx(float(row["TF_per_gpu"]), rel=0.22)


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from(["paper", "fsdp2", "torchtitan"]),
)
def test_what_stays_and_what_crosses_is_all(tp: int, pp: int, gpus: int, framework: str) -> None:
    given = job(cluster={"gpus": gpus}, parallel={"tp": tp, "pp": pp}, framework=framework)
    answer = estimate(given)
    sent = answer.communication
    parts = sent.placements
    assert list(parts) == [placed(given, entry) for entry in sent.collectives]
    assert (
        sum(p.intra_node_bytes + p.inter_node_bytes for p in parts)
        == answer.communication.sent_bytes_per_gpu
    )
    assert sum(p.inter_node_bytes for p in parts) == answer.communication.inter_node_bytes_per_gpu
    if gpus <= 8:
        assert answer.communication.inter_node_bytes_per_gpu == 0
    for entry, part in zip(sent.collectives, parts, strict=True):
        assert 0 <= part.hierarchical_bytes <= part.inter_node_bytes
        if entry.group == "tp":
            assert part.inter_node_bytes == 0


def test_a_nodes_cards_share_what_its_gpus_send() -> None:
    """A ring over 8 nodes of 8: an eighth of a GPU's bytes leave the node; GPUs first would leave
    (n−1)/n of a GPU's eighth of the tensor.
    """
    sent = estimate(
        job(cluster={"gpus": 64, "node": "p4d.24xlarge"}, zero={"stage": 0})
    ).communication
    (entry,), (where,) = sent.collectives, sent.placements
    assert where.inter_node_bytes == entry.sent_bytes // 8 == 2 * 63 * entry.tensor_bytes // 64 // 8
    assert where.hierarchical_bytes == 2 * 7 * entry.tensor_bytes // 64
    assert sent.inter_node_bytes_per_card == 2 * where.inter_node_bytes  # four cards for eight GPUs
    unknown = job(cluster={"gpus": 64, "node": None, "gpu": "a100-40g"}, zero={"stage": 0})
    assert estimate(unknown).communication.inter_node_bytes_per_card is None


@given(st.integers(1, 400), st.integers(1, 400))
def test_a_faster_network_never_takes_longer(slow: int, faster: int) -> None:
    one, other = sorted((slow, faster))
    assert (
        time_of(cluster={"inter_node": f"{one}GB/s"}).step_seconds
        >= time_of(cluster={"inter_node": f"{other}GB/s"}).step_seconds
    )


LARGE = {"hidden": 4096, "heads": 32, "ffn": 11008}


@pytest.mark.parametrize(
    "parts",
    [{}, {"parallel": {"tp": 2}}, {"framework": "deepspeed"}, {"training": {"accumulation": 4}}],
)
def test_the_bandwidth_that_hides_traffic_does(parts: dict[str, Any]) -> None:
    """From it on only what nothing computes beside is exposed; below it more is."""
    more = {"model": LARGE, **parts, "training": {"micro_batch": 8, **parts.get("training", {})}}

    def at(bandwidth: str) -> Timing:
        return time_of(**more, cluster={"inter_node": bandwidth})

    needed = at("1GB/s").hidden_above_bytes_per_second_per_node
    assert needed is not None
    enough, short = at(f"{1.001 * needed:.0f}B/s"), at(f"{0.95 * needed:.0f}B/s")
    assert enough.exposed_communication_seconds == pytest.approx(
        enough.unhidable_communication_seconds
    )
    assert short.exposed_communication_seconds > 1.0001 * short.unhidable_communication_seconds


def test_no_bandwidth_hides_what_hops_alone_take() -> None:
    assert time_of(training={"micro_batch": 4}).hidden_above_bytes_per_second_per_node is None
    assert time_of(model=LARGE, cluster={"gpus": 8}).hidden_above_bytes_per_second_per_node is None


def test_every_figure_of_a_steps_time_has_its_formula() -> None:
    time = time_of(model=LARGE, training={"micro_batch": 8, "tokens": "1T", "recompute": "full"})
    figures = {figure.name: figure for figure in time.figures}
    for figure in figures.values():
        assert figure.formula.function(**figure.inputs) == figure.value
    assert (
        figures["time per step"].value
        == time.step_seconds
        == sum(part.seconds for part in time.parts[:4])
    )
    assert (figures["MFU"].value, figures["HFU"].value) == (time.mfu, time.hfu)
    assert (figures["days"].value, figures["GPU-hours"].value) == (time.days, time.gpu_hours)
    assert figures["tokens per second"].value == time.tokens_per_second


@pytest.mark.parametrize(
    ("framework", "zero", "calls"),
    [
        (
            "deepspeed",
            {"reduce_bucket_size": 200_000},
            {512_000},
        ),  # the head's bucket is as large, and the first
        ("torch-ddp", {"stage": 0}, {11_538_432}),
        ("paper", {"shard_group": 8}, {512_000, 64_000}),
        ("fsdp2", {}, {2_065_408}),
        ("deepspeed", {"quantised_gradients": True}, {128_000, 4_000, 16_000, 500}),
    ],
)
def test_nothing_hides_the_last_reduction(
    framework: str, zero: dict[str, Any], calls: set[int]
) -> None:
    """All calls that it consists of."""
    answer = estimate(
        job(framework=framework, zero=zero, training={"micro_batch": 64, "seq": 4096})
    )
    assert answer.time is not None
    parts = list(zip(answer.communication.collectives, answer.time.parts[4:], strict=True))
    alone = sum(part.seconds for c, part in parts if not c.overlapped)
    first = next(
        (part.seconds / c.count for c, part in parts if c.overlapped and c.moment == "forward"), 0.0
    )
    reductions = [(c, part) for c, part in parts if c.overlapped and "gradients" in c.what]
    last = [part.seconds / c.count for c, part in reductions if c.tensor_bytes in calls]
    assert len(last) == len(calls)
    assert answer.time.exposed_communication_seconds == pytest.approx(alone + first + sum(last))


def test_one_gpu_computes_and_updates() -> None:
    time = time_of(cluster={"gpus": 1})
    assert time.communication_seconds == time.bubble_seconds == 0
    assert time.step_seconds == pytest.approx(time.compute_seconds + time.update_seconds)
    assert time.hfu == time.mfu < 0.55


def test_recomputation_is_in_hfu_alone() -> None:
    none, full = (
        time_of(cluster={"gpus": 1}),
        time_of(cluster={"gpus": 1}, training={"recompute": "full"}),
    )
    assert full.mfu < none.mfu
    assert full.hfu > full.mfu
    assert full.model_flops_per_step == none.model_flops_per_step
    found = work_of(job(training={"recompute": "full"}))
    head = 2 * 512 * SMALL["vocab"] * SMALL["hidden"]
    assert found.recomputed == found.forward - head


def busy(time: Timing) -> float:
    """Computing, and what pipeline stages send each other."""
    return time.compute_seconds + sum(
        part.seconds
        for part in time.parts
        if "activations to" in part.name or "gradients to" in part.name
    )


def test_a_pipelines_bubble() -> None:
    time = time_of(cluster={"gpus": 16}, parallel={"pp": 4}, training={"accumulation": 8})
    assert time.bubble_seconds == pytest.approx(busy(time) * 3 / 8)
    interleaved = time_of(
        model={"layers": 8},
        cluster={"gpus": 16},
        parallel={"pp": 4, "interleave": 2},
        training={"accumulation": 8},
    )
    assert interleaved.bubble_seconds == pytest.approx(busy(interleaved) * 3 / 16)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_updates_its_share(stage: int) -> None:
    whole, share = time_of(zero={"stage": 0}), time_of(zero={"stage": stage})
    assert share.update_seconds == pytest.approx(
        whole.update_seconds / 16, rel=1e-5
    )  # the share is rounded up
    parameters = estimate(job()).memory.gpu.states_bytes  # 16 bytes a parameter over 16 ranks
    assert whole.update_seconds == pytest.approx(2 * 16 * parameters / 3.35e12, rel=1e-3)


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    """2·N·tokens forward, as much for the inputs' gradients, nothing for those of frozen weights;
    adapters as any weights.
    """
    plain = job(model={"kind": "llama"})
    own, adapted = work_of(plain), work_of(job(model={"lora": {"rank": 8}}))
    added = 2 * 512 * 4 * 8 * ((256 + 256) + (256 + 64))  # 4 layers, rank 8, q_proj and v_proj
    assert adapted.products == own.products + added
    assert adapted.forward + adapted.backward == 2 * own.products + 3 * added + 3 * own.scores
    half = work_of(job(model={"trainable": 1000}))
    assert own.trained_products == own.products
    assert half.trained_products < own.products / 100


def test_hops_inside_nodes_are_not_the_networks() -> None:
    """A ring over 128 nodes of 8 leaves a node 127 times in 1,023 steps; an all-reduce goes round
    twice; a neighbour is one hop away.
    """
    given = job(cluster={"gpus": 1024}, zero={"stage": 1})
    steps = {
        entry.op: hops(entry, placed(given, entry))
        for entry in estimate(given).communication.collectives
    }
    assert steps["all_gather"] == steps["reduce_scatter"] == (896, 127)
    given = job(cluster={"gpus": 1024}, zero={"stage": 0})
    assert [
        hops(entry, placed(given, entry)) for entry in estimate(given).communication.collectives
    ] == [(1792, 254)]
    given = job(cluster={"gpus": 32}, parallel={"pp": 4}, training={"accumulation": 4})
    assert {
        hops(entry, placed(given, entry))
        for entry in estimate(given).communication.collectives
        if entry.group == "pp"
    } == {(0, 1)}


def test_each_hop_takes_its_latency() -> None:
    """NCCL's model of rings, protocol Simple (nccl, src/graph/tuning.cc: hwLat): 3.4 µs over NVLink
    and 14 µs over a network.
    """
    time = time_of(cluster={"gpus": 1024}, zero={"stage": 0})
    (reduced,) = [part for part in time.parts if "all_reduce" in part.name]
    bytes_alone = reduced.inputs["sent_bytes"] / reduced.inputs["bytes_per_second"]
    assert reduced.inputs["count"] == 1
    assert reduced.seconds - bytes_alone == pytest.approx(1792 * 3.4e-6 + 254 * 14e-6, rel=1e-9)


def test_what_nothing_runs_beside_is_waited_for() -> None:
    time = time_of(
        cluster={"gpus": 8, "intra_node": "4500GB/s"},
        training={"micro_batch": 64},
        zero={"stage": 0, "reduce_bucket_size": 10**6},
    )
    last = next(part for part in time.parts if part.name == "backward: all_reduce of gradients")
    assert 0 < time.exposed_communication_seconds <= last.seconds


def test_every_part_of_the_time_is_explained() -> None:
    time = time_of(parallel={"pp": 2}, training={"accumulation": 4})
    assert sum(part.seconds for part in time.parts[:4]) == pytest.approx(time.step_seconds)
    for part in time.parts:
        assert part.formula.function(**part.inputs) == part.seconds
    out = run_line(
        "explain --model llama-3-8b --gpus 16 --node dgx-h100 --seq 4096 --stage 3 --term time"
    ).out
    assert "F/(P·e)" in out
    assert "forward: all_gather of embedding weights" in out
    assert "CUDA context:" not in out


def test_days_and_gpu_hours() -> None:
    time = time_of(training={"tokens": "1B"})
    assert time.days is not None
    assert time.gpu_hours is not None
    assert time.days == pytest.approx(1e9 / time.tokens_per_second / 86_400)
    assert time.gpu_hours == pytest.approx(time.days * 24 * 16)


def test_time_in_a_plan() -> None:
    out = run_line("plan --model llama-3-8b --gpus 16 --node dgx-h100 --seq 8192 --tokens 1T").out
    for label in (
        "time per step",
        "  compute",
        "exposed communication",
        "optimizer step",
        "MFU",
        "tokens per second",
        "days",
        "GPU-hours",
        "network:",
    ):
        assert label in out
    assert (
        "--inter-node"
        in run_line("plan --model llama-3-8b --gpus 16 --gpu h100-80g --seq 8192").out
    )
    assert (
        "time per step"
        in run_line("plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192").out
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--kernel-efficiency 0", "--kernel-efficiency: 0 is too small: give a fraction above 0"),
        ("--kernel-efficiency 1.5", "--kernel-efficiency: "),
        ("--inter-node 0Gbps", "--inter-node: "),
        ("--inter-node 400", "--inter-node: "),
        ("--tokens 0", "--tokens: "),
    ],
)
def test_what_is_refused(flags: str, words: str) -> None:
    assert refused(
        run(*["plan", "--model", "gpt2", "--gpus", "8", "--seq", "512"], *flags.split())
    ).startswith(f"error: {words}")


def test_the_peak_in_16_bits_is_not_that_in_fp32() -> None:
    line = "plan --model llama-3-8b --gpus 8 --node dgx-h100 --seq 2048 --stage 3"
    out = " ".join(run(*line.split(), "--recipe", "fp32-adam").out.split())
    assert (
        "no step time: GPU presets have 16-bit peaks only, and recipe fp32-adam computes in fp32"
        in out
    )
    assert "time per step" not in out


def test_a_network_that_hides_nothing_is_told() -> None:
    line = (
        "plan --model llama-3-70b --gpus 64 --node a3-high --seq 1024 --framework deepspeed "
        "--recompute full --stage 3"
    )
    assert "no inter-node bandwidth hides all of it" in " ".join(run(*line.split()).out.split())
