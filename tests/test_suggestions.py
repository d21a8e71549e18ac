"""Cheapest changes: each one, given as the flags that it names, is a job that fits as it says."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.running import run_line

LINES = [
    (
        "--model tests/data/configs/flan-t5-xxl.json --gpus 8 --gpu a100-40g --seq 1024 "
        "--micro-batch 16",
        ["--micro-batch 1", "--recompute full"],
    ),
    (
        "--model mixtral-8x7b --gpus 32 --gpu h100-80g --seq 4096 --micro-batch 8",
        ["--micro-batch 1", "--recompute full"],
    ),
    (
        "--model gemma-2-9b --gpus 8 --gpu h100-80g --seq 8192 --micro-batch 8",
        ["--micro-batch 1 --accumulation 8 --recompute full"],
    ),
    (
        "--model mixtral-8x22b --gpus 16 --gpu h100-80g --seq 4096 --micro-batch 4",
        ["--recompute full --tp 2 --sequence-parallel --gpus 32"],
    ),
    (
        "--model jamba-v0.1 --gpus 8 --gpu h100-80g --seq 4096 --micro-batch 4",
        ["--recompute full --gpus 16"],
    ),
    (
        "--model llama-3-70b --gpus 16 --gpu h100-80g --seq 8192 --framework deepspeed",
        ["--recompute full --gpus 24"],
    ),
    (
        "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 65536 --framework megatron",
        ["--recompute full"],
    ),
]


@pytest.mark.parametrize(("line", "wanted"), LINES, ids=[line for line, _ in LINES])
def test_what_is_suggested_fits(line: str, wanted: list[str]) -> None:
    said = json.loads(run_line(f"plan {line} --json").out)["suggestions"]
    assert said
    assert all(any(change.startswith(part) for change in said) for part in wanted), said
    for change in said:
        flags, _, rest = change.partition(": ")
        name = rest.split(" fits")[0]
        given, changed = shlex.split(line), shlex.split(flags)
        for flag in [word for word in changed if word.startswith("--") and word in given]:
            place = given.index(flag)
            del given[place : place + 2]
        answer = json.loads(run_line(shlex.join(["plan", *given, *changed, "--json"])).out)
        assert answer["verdict"] == "fits"
        assert answer["recommended"]["name"].upper().replace("ZERO", "ZeRO") == name


@pytest.mark.parametrize("framework", ["deepspeed", "torch-ddp"])
def test_no_way_to_split_layers_is_suggested_that_a_framework_lacks(framework: str) -> None:
    line = (
        f"plan --model llama-3-70b --gpus 16 --gpu h100-80g --seq 8192 --framework {framework} "
        "--json"
    )
    assert not any(
        "--sequence-parallel" in change for change in json.loads(run_line(line).out)["suggestions"]
    )
