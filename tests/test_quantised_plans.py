"""Plans of quantised bases, which cost their stored bytes; QLoRA's (arXiv 2305.14314) worked out by
hand from Llama 3 8B's shapes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import run

CONFIGS = Path(__file__).parent / "data" / "configs"
HIDDEN, KV, FFN, VOCAB, LAYERS = 4096, 1024, 14336, 128256, 32
MATRICES = [
    (HIDDEN, HIDDEN),
    (KV, HIDDEN),
    (KV, HIDDEN),
    (HIDDEN, HIDDEN),
    (FFN, HIDDEN),
    (FFN, HIDDEN),
    (HIDDEN, FFN),
]
RANK = 16
ADAPTERS = LAYERS * RANK * sum(out + inner for out, inner in MATRICES)
QUANTISED = LAYERS * sum(out * inner for out, inner in MATRICES)
KEPT = 2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN
"""Embedding, head and norms."""
PACKED = (
    QUANTISED // 2 + QUANTISED // 64 + QUANTISED // (64 * 256) * 4 + LAYERS * len(MATRICES) * 1092
)
"""Half a byte each, a byte for each 64, one fp32 for each 256 of those, and two codebooks and a
mean a matrix (every size divides evenly).
"""
QLORA = ("--quantise", "nf4-double", "--lora-rank", str(RANK), "--lora-targets", "all-linear")


def plan(*arguments: str) -> dict[str, Any]:
    ran = run("plan", "--gpus", "4", "--json", *arguments)
    assert ran.status == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def rows(answer: dict[str, Any], stage: int, *kinds: str) -> dict[str, int]:
    terms = answer["candidates"][stage]["memory"]["gpu"]["terms"]
    return {term["name"]: term["bytes"] for term in terms if term["kind"] in kinds}


def weights(answer: dict[str, Any], stage: int) -> int:
    return rows(answer, stage, "weights")["weights"]


@pytest.mark.parametrize(
    "name", ["nf4", "nf4-double", "int8", "fp8", "gptq-4bit", "awq-4bit", "packed-4bit"]
)
def test_a_frozen_base_costs_its_stored_bytes(name: str) -> None:
    counted = run("params", "llama-2-7b", "--quantise", name, "--json")
    stored = json.loads(counted.out)["stored_bytes"]
    answer = plan("--model", "llama-2-7b", "--quantise", name, "--trainable", "20M")
    assert weights(answer, 0) == stored
    assert weights(answer, 3) == -(-stored // 4)
    gradients = [
        term["bytes"]
        for term in answer["candidates"][0]["memory"]["gpu"]["terms"]
        if term["kind"] == "gradients"
    ]
    assert gradients == [2 * 20_000_000]
    assert any("not quantised" in text for text in answer["assumptions"])
    again = run("plan", "--job", "-", "--json", stdin=json.dumps(answer))
    assert json.loads(again.out)["candidates"] == answer["candidates"]


def test_the_rest_of_a_base_follows_the_recipe() -> None:
    line = ("--model", "llama-2-7b", "--quantise", "nf4", "--trainable", "1M")
    mixed, full = (
        weights(plan(*line, "--recipe", recipe), 0) for recipe in ("mixed-adam", "fp32-adam")
    )
    embedding_head_norms = 2 * 32000 * 4096 + 65 * 4096
    assert full - mixed == 2 * embedding_head_norms


def test_a_config_that_is_quantised_is_trained_whole_unless_told_otherwise(tmp_path: Path) -> None:
    path = str(CONFIGS / "llama-2-70b-gptq.json")
    whole = plan("--model", path)
    assert weights(whole, 0) == 2 * 68_976_648_192
    assert (
        "quantised weights cannot be trained: all parameters are trained, unquantised"
        in whole["assumptions"]
    )
    assert weights(plan("--trainable", "1M", "--model", path), 0) == 36_638_572_544


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model gpt2 --quantise nf4", "--quantise: quantised weights are frozen"),
        (
            "--model gpt2 --quantise nf5 --trainable 1M",
            "--quantise: 'nf5' is not a preset; nearest: nf4",
        ),
        ("--params 7B --quantise nf4 --trainable 1M", "--quantise: needs an architecture"),
        (
            "--model gpt2 --quantise mxfp4 --trainable 1M",
            "--quantise: mxfp4 quantises routed experts, of which the model has none",
        ),
        (
            "--model gpt2 --quantise nf4 --trainable 100M",
            "--trainable: 100,000,000 is more than the ",
        ),
    ],
)
def test_contradictions(line: str, said: str) -> None:
    ran = run("plan", "--gpus", "2", *line.split())
    assert ran.status == 2
    assert ran.err.startswith(f"error: {said}")
    assert ran.err.count("\n") == 1


def test_the_shapes_are_those_of_the_model() -> None:
    assert (QUANTISED, KEPT, QUANTISED + KEPT) == (6_979_321_856, 1_050_939_392, 8_030_261_248)
    assert (ADAPTERS, PACKED) == (41_943_040, 3_600_661_376)


def test_the_base_costs_its_stored_bytes_and_the_adapters_their_own_rows() -> None:
    """QLoRA's 4 bits: 5.70 GB of base, of which 2.10 GB are not quantised, and 0.17 GB of adapters
    in fp32, with gradients and moments.
    """
    answer = plan("--model", "llama-3-8b", *QLORA)
    base, adapter = PACKED + 2 * KEPT, 4 * ADAPTERS
    assert base == 5_702_540_160
    whole = {"frozen weights": base, "adapter weights": adapter}
    assert rows(answer, 0, "weights") == whole
    assert rows(answer, 3, "weights") == {name: size // 4 for name, size in whole.items()}
    assert rows(answer, 0, "gradients") == {"adapter gradients": adapter}
    assert list(rows(answer, 0, "optimizer").values()) == [adapter, adapter]
    assert answer["candidates"][0]["memory"]["gpu"]["states_bytes"] == base + 4 * adapter


def test_gathers_at_stage_3_are_those_of_plain_lora() -> None:
    """An upper bound, and said to be one."""
    quantised, plain = (
        plan("--model", "llama-3-8b", *QLORA),
        plan("--model", "llama-3-8b", *QLORA[2:]),
    )
    assert rows(quantised, 3, "gathered") == rows(plain, 3, "gathered") != {}
    assert quantised["candidates"][3]["communication"] == plain["candidates"][3]["communication"]
    assert any("upper bound of gathered memory" in text for text in quantised["assumptions"])


def test_what_it_rests_on_is_said_once() -> None:
    answer = plan("--model", "llama-3-8b", *QLORA)
    assert "the frozen base has no gradients and no optimizer states" in answer["assumptions"]
    assert not any(
        "held in the recipe's compute dtype" in text or "what is trained is among" in text
        for text in answer["assumptions"]
    )
    shown = run("plan", "--model", "llama-3-8b", "--gpus", "4", *QLORA).out
    assert "frozen base in nf4-double" in shown.replace("\n", " ")


def test_a_saved_job_gives_the_same_again() -> None:
    answer = plan("--model", "llama-3-8b", *QLORA)
    again = run("plan", "--job", "-", "--json", stdin=json.dumps(answer))
    assert json.loads(again.out) == answer


def test_adapters_on_a_checkpoint_that_is_quantised() -> None:
    answer = plan("--model", str(CONFIGS / "llama-2-70b-gptq.json"), "--lora-rank", "8")
    assert rows(answer, 0, "weights")["frozen weights"] == 36_638_572_544
    assert not any("cannot be trained" in text for text in answer["assumptions"])


@pytest.mark.parametrize("preset", ["nf4", "int8", "fp8", "gptq-4bit", "awq-4bit"])
@pytest.mark.parametrize("model", ["gpt2", "llama-2-7b"])
def test_every_base_beside_adapters_is_what_params_stores(model: str, preset: str) -> None:
    stored = json.loads(run("params", model, "--quantise", preset, "--json").out)["stored_bytes"]
    answer = plan(
        "--model", model, "--quantise", preset, "--lora-rank", "4", "--lora-targets", "all-linear"
    )
    assert rows(answer, 0, "weights")["frozen weights"] == stored


def test_params_adds_the_adapters_to_what_is_stored() -> None:
    counts = json.loads(run("params", "llama-3-8b", *QLORA, "--json").out)
    assert (counts["total"], counts["adapters"]) == (QUANTISED + KEPT + ADAPTERS, ADAPTERS)
    assert counts["stored"]["adapters"] == 4 * ADAPTERS
    assert (
        counts["stored_bytes"]
        == PACKED + 2 * KEPT + 4 * ADAPTERS
        == sum(counts["stored"]["components"].values()) + 4 * ADAPTERS
    )


def test_a_format_in_a_file_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    shown = run("presets", "quantisations", "nf4", "--json")
    (tmp_path / "own.json").write_text(json.dumps({**json.loads(shown.out)["nf4"], "name": "own"}))
    model = {
        "layers": 2,
        "hidden": 64,
        "heads": 2,
        "quantised": "own.json",
        "lora": {"rank": 4, "targets": "all-linear"},
    }
    (tmp_path / "model.json").write_text(json.dumps(model))
    (tmp_path / "job.json").write_text(json.dumps({"model": model, "cluster": {"gpus": 4}}))
    named, in_job = (
        plan("--model", str(tmp_path / "model.json")),
        plan("--job", str(tmp_path / "job.json")),
    )
    assert (
        named["job"]["model"]["quantised"]["name"]
        == in_job["job"]["model"]["quantised"]["name"]
        == "own"
    )
    assert run("presets", "models", str(tmp_path / "model.json")).status == 0
