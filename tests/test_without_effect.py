"""What is chosen and changes nothing is said, and why."""

from __future__ import annotations

import json

import pytest

from tests.running import refused, run_line

DENSE = "--model llama-3-8b --gpus 8 --seq 512"
ROWS = [
    (
        f"{DENSE} --recompute selective --recompute-modules moe --attention eager",
        "--recompute-modules moe (no layer has moe)",
    ),
    (
        f"{DENSE} --recompute full --recompute-modules mlp",
        "--recompute-modules mlp (only --recompute selective uses it)",
    ),
    (f"{DENSE} --reentrant", "--reentrant (nothing is recomputed)"),
    (
        f"{DENSE} --recompute full --recompute-every 40",
        "--recompute-every 40 (more than the 32 layers: one is recomputed)",
    ),
    (
        f"{DENSE} --tokens 1T",
        "--tokens (days and GPU-hours need a step time: pass --gpu, an architecture and --seq)",
    ),
    (
        "--params 1B --gpus 8 --gpu h100-80g --tokens 1T",
        "--tokens (days and GPU-hours need a step time: pass --gpu, an architecture and --seq)",
    ),
    (f"{DENSE} --cublas-workspace 64MiB", "--cublas-workspace (needs --workspaces)"),
    (
        "--model mamba-2.8b --gpus 8 --seq 512 --attention eager",
        "--attention eager (no layer has attention)",
    ),
    (
        "--model mamba-2.8b --gpus 8 --seq 512 --recompute selective",
        "--recompute selective (no layer has core_attn)",
    ),
]
WITH_EFFECT = [
    f"{DENSE} --recompute selective --recompute-modules mlp --attention eager",
    "--model mixtral-8x7b --gpus 8 --seq 512 --recompute selective --recompute-modules moe",
    "--model deepseek-v2-lite --gpus 8 --seq 512 --recompute selective --attention eager",
    f"{DENSE} --recompute full --recompute-every 32 --reentrant",
    f"{DENSE} --gpu h100-80g --tokens 1T --workspaces --cublas-workspace 64MiB",
    f"{DENSE} --tp 2 --sequence-parallel --attention eager",
]


@pytest.mark.parametrize(("line", "words"), ROWS, ids=[line for line, _ in ROWS])
def test_what_changes_nothing_is_said(line: str, words: str) -> None:
    assert [
        note
        for note in json.loads(run_line(f"plan {line} --json").out)["notes"]
        if "no effect" in note
    ] == [f"no effect: {words}"]


@pytest.mark.parametrize("line", WITH_EFFECT)
def test_what_changes_something_is_not(line: str) -> None:
    assert not any(
        "no effect" in note for note in json.loads(run_line(f"plan {line} --json").out)["notes"]
    )


@pytest.mark.parametrize("model", ["bloom-560m", "tests/data/configs/flan-t5-xxl.json"])
def test_attention_of_a_class_that_has_no_fused_one(model: str) -> None:
    line = f"plan --model {model} --gpus 8 --seq 512"
    said = refused(run_line(f"{line} --framework deepspeed"))
    assert said.endswith("only unfused attention: choose --attention eager")
    assert run_line(f"{line} --framework deepspeed --attention eager").status == 0
    assert any(
        "--attention eager counts it" in note
        for note in json.loads(run_line(f"{line} --json").out)["notes"]
    )
    assert not any(
        "unfused" in note
        for note in json.loads(run_line(f"{line} --attention eager --json").out)["notes"]
    )


def test_a_model_without_attention_is_not_said_to_have_some() -> None:
    ran = run_line("plan --model mamba-2.8b --gpus 8 --seq 512 --cp 8")
    assert "flash" not in ran.out
    assert "keys and values" not in ran.out
    assert "are not counted" in ran.out
