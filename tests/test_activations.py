"""What layers keep, by how they are run: pipelines, recomputation, implementations, losses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run, run_line
from zerocalc import Job, estimate, load_model, presets
from zerocalc.formulas.published_activations import first_stage_layers
from zerocalc.results import Estimate

LAYERS = 24
MODEL: dict[str, Any] = {
    "kind": "llama",
    "layers": LAYERS,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 700,
    "vocab": 1000,
}


def answer(model: dict[str, Any] | None = None, **parts: Any) -> Estimate:
    job = {"model": {**MODEL, **(model or {})}, "cluster": {"gpus": 1}, "training": {"seq": 128}}
    for name, changes in parts.items():
        job[name] = {**job.get(name, {}), **changes} if isinstance(changes, dict) else changes
    return estimate(Job.model_validate(job), 0)


def kept(of: Estimate) -> int:
    """Bytes that layers keep from forward until their backward begins."""
    return sum(
        t.bytes
        for t in of.memory.gpu.terms
        if t.kind in {"activations", "checkpoints"} and "layers" in t.inputs
    )


@given(st.integers(2, 4), st.integers(2, 3), st.integers(4, 8))
def test_interleaving_holds_what_the_paper_says(pp: int, interleave: int, rounds: int) -> None:
    def pipelined(v: int) -> int:
        parallel = {"pp": pp, "interleave": v}
        return kept(
            answer(
                {"layers": pp * interleave},
                cluster={"gpus": pp},
                parallel=parallel,
                training={"seq": 128, "accumulation": pp * rounds},
            )
        )

    layer = kept(answer({"layers": 1}))
    assert pipelined(1) == layer * interleave * pp
    assert pipelined(interleave) == layer * first_stage_layers(
        layers=pp * interleave, pipeline_parallel=pp, interleave=interleave
    )


def test_interleaving_never_holds_more_than_there_is() -> None:
    one_round = answer(
        {"layers": 8},
        cluster={"gpus": 4},
        parallel={"pp": 4, "interleave": 2},
        training={"seq": 128, "accumulation": 4},
    )
    assert kept(one_round) == kept(answer({"layers": 8})) // 4 * 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--interleave 2",
            "--interleave: needs --pp above 1: it divides each pipeline stage into chunks",
        ),
        (
            "--pp 4 --interleave 7 --accumulation 4",
            "--interleave: 4 stages of 7 chunks are more than the 24 layers",
        ),
        (
            "--pp 4 --interleave 2 --accumulation 6",
            "--interleave: needs micro-batches in groups of pp: 4 does not divide the 6 per step",
        ),
        (
            "--recompute-every 2",
            "--recompute-every: needs --recompute full or operators",
        ),
        (
            "--recompute selective --recompute-modules nothing",
            "--recompute-modules: 'nothing' is not one of",
        ),
        (
            "--implementation megaton",
            "--implementation: 'megaton' is not a preset; nearest: megatron",
        ),
        ("--loss fussed", "--loss: 'fussed' is not a preset; nearest: fused"),
    ],
)
def test_what_is_refused(flags: str, words: str) -> None:
    line = "plan --layers 24 --hidden 256 --heads 8 --gpus 8 --seq 128"
    assert refused(run(*line.split(), *flags.split())).startswith(f"error: {words}")


@given(st.integers(1, 24))
def test_one_layer_in_so_many_is_recomputed(every: int) -> None:
    whole, none = answer(training={"recompute": "full"}), answer()
    part = answer(training={"recompute": "full", "recompute_every": every})
    chosen = -(-LAYERS // every)
    layer, checkpoint = kept(none) // LAYERS, kept(whole) // LAYERS
    assert kept(part) == chosen * checkpoint + (LAYERS - chosen) * layer


@pytest.mark.parametrize("implementation", presets.names("implementations"))
@pytest.mark.parametrize("kernel", ["flash", "efficient", "math", "eager"])
@pytest.mark.parametrize("model", [{}, {"kind": "gpt2", "kv_heads": 8}], ids=["llama", "gpt2"])
def test_recomputing_more_keeps_less(
    implementation: str, kernel: str, model: dict[str, Any]
) -> None:
    def how(recompute: str) -> int:
        return kept(
            answer(
                model,
                implementation=implementation,
                training={"attention": kernel, "recompute": recompute},
            )
        )

    assert how("full") < how("operators") <= how("none")
    assert how("full") < how("selective") <= how("none")


@pytest.mark.parametrize("implementation", presets.names("implementations"))
@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_divides_all_but_what_is_gathered_whole(
    implementation: str, tp: int
) -> None:
    def split(degree: int, sequence: bool) -> int:
        parallel = {"tp": degree, "sequence_parallel": sequence}
        return kept(
            answer(
                {"kv_heads": 8},
                implementation=implementation,
                cluster={"gpus": degree},
                parallel=parallel,
            )
        )

    whole, tensor, both = split(1, False), split(tp, False), split(tp, True)
    assert whole / tp <= both < tensor < whole
    if implementation == "paper":
        assert both == whole // tp


HIDDEN, HEAD = MODEL["hidden"] / MODEL["vocab"], MODEL["hidden"] / 128
"""Elements of the hidden states, and of the head's weight, for each of the logits' (128 tokens)."""
LOSSES = {
    "fp32": ((2 + 4 + 4, 3 * 4), (4 + 4, 3 * 4)),
    "fp32-logits-returned": ((2 + 4 + 4, 2 + 3 * 4), (4 + 4 + 4, 4 + 3 * 4)),
    "compute-dtype": ((2 + 2, 3 * 2), (4 + 4, 3 * 4)),
    "in-place": ((2 + 4, 4 + 2), (4, 4 + 4)),
    "parallel-fused": ((2 + 4 + 4, 4 + 2), (4 + 4, 4 + 4)),
    "parallel-in-place": ((2, 2 + 2 * (HEAD + HIDDEN)), (4, 4 + 4 * (HEAD + HIDDEN))),
    "chunked": (
        (2 + 4 + 4 / 8, 2 + 4 + 2 * 4 / 8 + 2 * 2 * HEAD),
        (4 + 4 + 4 / 8, 4 + 4 + 2 * 4 / 8 + 2 * 4 * HEAD),
    ),
    "fused": (
        (2 / 4 + 2 * HIDDEN + 2 * 2 * HEAD, 2 * 2 * (HIDDEN + HEAD)),
        (4 / 4 + 4 * HIDDEN + 2 * 4 * HEAD, 2 * 4 * (HIDDEN + HEAD)),
    ),
}
"""Bytes for each element of the logits, in forward and when their gradient exists: computed in 16
bits, and in fp32, of which an fp32 loss makes no copy. Copies, log-probabilities, gradients;
``chunked`` cuts the logits in 8, ``fused`` in 4 (vocabulary 1,000 over hidden size 256).
"""


def test_every_loss_has_its_bytes() -> None:
    assert set(LOSSES) == set(presets.names("losses"))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("which", "recipe"), [(0, "mixed-adam"), (1, "fp32-adam")])
def test_a_loss_holds_its_copies_of_the_logits(loss: str, which: int, recipe: str) -> None:
    terms = [t for t in answer(loss=loss, recipe=recipe).memory.gpu.terms if t.kind == "logits"]
    logits = 128 * MODEL["vocab"]
    held = [sum(t.bytes for t in terms if m in t.moments) for m in ("forward", "loss")]
    assert held == [round(logits * each) for each in LOSSES[loss][which]]
    assert {moment for t in terms for moment in t.moments} == {"forward", "loss"}


def test_what_a_peak_consists_of_is_named() -> None:
    gpu = answer({"vocab": 200_000}).memory.gpu
    assert next(iter(gpu.largest_at_peak)) == "master weights"
    assert list(gpu.largest_at_peak.values()) == sorted(gpu.largest_at_peak.values(), reverse=True)
    line = (
        "plan --layers 2 --hidden 256 --heads 4 --kind llama --vocab 200000 --seq 4096 --gpus "
        "8 --gpu h100-80g --micro-batch 8"
    )
    assert "logits (fp32)" in run_line(line).out.partition("peak of DDP:")[2].split("%")[0]


@pytest.mark.parametrize("implementation", ["paper", "huggingface"])
@pytest.mark.parametrize(
    "model",
    [
        "jamba-v0.1",
        "flan-t5-xxl",
        "deepseek-v2-lite",
        "llama-4-scout",
        "gemma-3-4b-it",
        "bart-large",
    ],
)
def test_the_same_layer_of_mixed_ones_stands_for_the_one_in_backward(
    model: str, implementation: str
) -> None:
    """With recomputation and without: what was computed again is what would have been kept, but for
    the layer's input beside it.
    """
    micro_batch, seq = 8, 512

    def backward(recompute: str) -> int:
        training = {
            "seq": seq,
            "micro_batch": micro_batch,
            "attention": "eager",
            "recompute": recompute,
        }
        job = {
            "model": model,
            "cluster": {"gpus": 8},
            "implementation": implementation,
            "training": training,
            "zero": {"stage": 0},
        }
        return estimate(Job.model_validate(job)).memory.gpu.moments["backward_end"]

    architecture = load_model(model).stack
    assert architecture is not None
    hidden = max(
        int(module.values.get("hidden", 0))
        for group in architecture.groups
        for module in group.modules
    )
    assert 0 <= backward("full") - backward("none") <= micro_batch * seq * hidden * 2
