"""The papers' closed forms against the program's own counts, and against numbers from their
sources.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zerocalc.estimator import estimate
from zerocalc.formulas import estimators, published, published_activations
from zerocalc.model.architecture import Architecture
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.model.module import layout
from zerocalc.papers.activations import TECHNIQUES, closed_layer, saved_by_layer
from zerocalc.papers.jobs import bare, layered
from zerocalc.spec.model import Model

DATA = Path(__file__).parent / "data" / "published"
RUNS: list[dict[str, Any]] = json.loads((DATA / "deepspeed_estimators.json").read_text("utf-8"))[
    "runs"
]


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """A layer that tensor parallelism divides evenly."""
    tp = draw(st.sampled_from((2, 3, 4, 8, 16)))
    heads = tp * draw(st.integers(1, 8))
    hidden = heads * draw(st.sampled_from((1, 8, 64, 80, 128)))
    return {
        "hidden": hidden,
        "heads": heads,
        "seq": tp * draw(st.integers(1, 8192 // tp)),
        "micro_batch": draw(st.integers(1, 64)),
        "tp": tp,
    }


def built(shape: dict[str, int], sequence_parallel: bool = False) -> Architecture:
    job = layered({"layers": 1, **shape}, sequence_parallel)
    arch = architecture(job.model, layout(job, shape["seq"]), job.implementation)
    assert arch is not None
    return arch


@given(shapes(), st.sampled_from(sorted(TECHNIQUES)))
def test_layer_by_technique(shape: dict[str, int], technique: str) -> None:
    assert saved_by_layer(technique, **shape) == closed_layer(technique, **shape)


@given(shapes())
def test_layer_by_component(shape: dict[str, int]) -> None:
    s, b, h, a = shape["seq"], shape["micro_batch"], shape["hidden"], shape["heads"]
    saved: dict[str, int] = {}
    for module in built({**shape, "tp": 1}).layer:
        saved[module.component] = saved.get(module.component, 0) + sum(
            tensor.bytes for tensor in module.saved
        )
    attention = published_activations.attention_bytes(seq=s, micro_batch=b, hidden=h, heads=a)
    mlp = published_activations.mlp_bytes(seq=s, micro_batch=b, hidden=h)
    norms = published_activations.layer_norm_bytes(seq=s, micro_batch=b, hidden=h)
    assert saved == {"attention": attention, "mlp": mlp, "norms": norms}
    assert attention + mlp + norms == published_activations.layer_bytes(
        seq=s, micro_batch=b, hidden=h, heads=a
    )


@given(shapes())
def test_what_the_ends_add(shape: dict[str, int]) -> None:
    s, b, h, t = shape["seq"], shape["micro_batch"], shape["hidden"], shape["tp"]
    arch = built(shape, sequence_parallel=True)
    assume(arch.vocab % t == 0)
    before = sum(tensor.bytes for module in arch.before for tensor in module.saved)
    extra = published_activations.first_stage_extra_bytes(
        seq=s, micro_batch=b, hidden=h, pipeline_parallel=1, tensor_parallel=t
    )
    assert before == extra
    after = sum(tensor.bytes for module in arch.after for tensor in module.saved)
    logits = 4 * s * b * arch.vocab // t  # counted with the loss, not as the head's
    single = published_activations.single_stage_extra_bytes(
        seq=s, micro_batch=b, hidden=h, vocab=arch.vocab, tensor_parallel=t
    )
    assert after + logits == single


@given(shapes())
def test_what_selective_recomputation_saves(shape: dict[str, int]) -> None:
    one = {**shape, "tp": 1}
    kept = saved_by_layer("tp+selective", **one) / saved_by_layer("none", **one)
    share = published_activations.selective_saving(
        heads=shape["heads"], seq=shape["seq"], hidden=shape["hidden"]
    )
    assert 1 - kept == pytest.approx(share, rel=1e-9)


@given(st.integers(1, 10**12), st.integers(2, 4096), st.sampled_from(range(4)))
def test_states_by_stage(parameters: int, shards: int, stage: int) -> None:
    inputs = {"parameters": parameters, "optimizer_bytes": published.ADAM_BYTES} | (
        {"shards": shards} if stage else {}
    )
    closed = published.STATES[stage](**inputs)
    padded = estimate(bare(parameters, shards), stage).memory.gpu.states_bytes
    assert closed <= padded <= closed + 16
    if parameters % shards == 0:
        assert closed == padded


@given(
    st.integers(1, 200),
    st.integers(1, 128),
    st.sampled_from((16, 64, 128)),
    st.integers(2, 200_000),
    st.integers(1, 8192),
)
def test_gpt_parameters(layers: int, heads: int, head_dim: int, vocab: int, positions: int) -> None:
    hidden = heads * head_dim
    model = Model.model_validate(
        {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "positions": positions}
    )
    counts = count_parameters(model)
    final_norm = 2 * hidden
    assert (
        counts.total
        == published.gpt_parameters(layers=layers, hidden=hidden, vocab=vocab, seq=positions)
        + final_norm
    )
    matrices = published.transformer_parameters(layers=layers, hidden=hidden)
    assert (
        counts.components["attention"] + counts.components["mlp"] == matrices + 9 * layers * hidden
    )  # the rest is biases


@pytest.mark.parametrize("row", rows("megatron_sc21_table1"), ids=lambda r: r["params_B"])
def test_flops(row: dict[str, str]) -> None:
    sizes = {
        "batch": int(row["gbs"]),
        "seq": 2048,
        "layers": int(row["layers"]),
        "hidden": int(row["hidden"]),
        "vocab": 51200,
    }
    flops = published.flops_with_recomputation(**sizes)
    assert flops / 1e18 == pytest.approx(float(row["rec_FLOPs_per_iter_e18"]), abs=5.1e-5)
    b, s, n, h, v = sizes.values()
    assert flops == pytest.approx(
        96 * b * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h)), rel=1e-12
    )
    assert published.flops_without_recomputation(**sizes) == pytest.approx(
        72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "percent"), [(96, 12288, 2.7), (105, 20480, 1.6)], ids=["GPT-3", "MT-NLG"]
)
def test_selective_overhead_is_attention_once_more(
    layers: int, hidden: int, percent: float
) -> None:
    share = published_activations.selective_overhead(
        seq=2048, hidden=hidden, vocab=51200, layers=layers
    )
    model = published.flops_without_recomputation(
        batch=1, seq=2048, layers=layers, hidden=hidden, vocab=51200
    )
    assert share == pytest.approx(12 * 2048**2 * layers * hidden / model, rel=1e-12)
    assert share == pytest.approx(percent / 100, abs=5e-4)


@pytest.mark.parametrize(
    "row",
    rows("zeroinf_efficiency_points"),
    ids=lambda r: f"{r['state']}-{r['ait']}-{r['bandwidth_GBps']}",
)
def test_efficiency(row: dict[str, str]) -> None:
    share = published.efficiency(
        intensity=float(row["ait"]),
        bytes_per_second=float(row["bandwidth_GBps"]) * 1e9,
        peak_flops_per_second=70e12,
    )
    assert share == pytest.approx(float(row["efficiency_recomputed"]), abs=5.1e-5)


def test_intensities_are_those_of_the_points() -> None:
    assert published.parameter_intensity(seq=1024, micro_batch=1) == 1024
    assert published.optimizer_intensity(seq=1024, micro_batch=2) == 512
    assert [
        published.checkpoint_intensity(hidden=h, checkpoint_interval=1)
        for h in (2048, 8192, 16384, 65536)
    ] == [49152, 196608, 393216, 1572864]


def test_bubbles() -> None:
    whole = published.bubble(pipeline_parallel=8, micro_batches=64)
    assert (
        published.interleaved_bubble(pipeline_parallel=8, interleave=1, micro_batches=64) == whole
    )
    assert (
        published.interleaved_bubble(pipeline_parallel=8, interleave=2, micro_batches=64)
        == whole / 2
    )


@pytest.mark.parametrize(
    ("layers", "pp", "interleave", "held"),
    [(96, 8, 3, 124), (105, 35, 3, 139)],
    ids=["GPT-3", "MT-NLG"],
)
def test_layers_held_by_the_first_stage(layers: int, pp: int, interleave: int, held: float) -> None:
    assert (
        published_activations.first_stage_layers(
            layers=layers, pipeline_parallel=pp, interleave=interleave
        )
        == held
    )


@pytest.mark.parametrize(
    "run", RUNS, ids=[f"{r['model']}-{r['nodes']}-{r['stage']}-{i}" for i, r in enumerate(RUNS)]
)
def test_estimators(run: dict[str, Any]) -> None:
    offload = (
        "all" if run.get("cpu_offload_params") else "optimizer" if run["cpu_offload"] else "none"
    )
    which = estimators.ESTIMATORS[run["stage"], offload, run.get("zero_init", False)]
    sizes = {
        "parameters": run["total"],
        "largest_layer": run.get("largest_layer", 0),
        "gpus_per_node": run["gpus"],
        "nodes": run["nodes"],
    }
    assert estimators.evaluate(which.gpu, **sizes) == run["gpu_bytes"]
    assert estimators.evaluate(which.host, **sizes) == run["cpu_bytes"]
    if run["stage"] == 3:
        assert (
            estimators.stage3_all_offload_gpu(largest_layer=run["largest_layer"])
            == run["largest_layer_bytes"]
        )


def test_older_stage_2() -> None:
    """At 8 GPUs the older formula says 6 bytes a parameter, the current one 4.25."""
    assert estimators.stage2_gpu_older(parameters=1000, gpus=8) == 6000
    assert estimators.stage2_gpu(parameters=1000, gpus=8) == 4250
