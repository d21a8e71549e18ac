"""Our figures beside other tools'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run
from zerocalc import Job, plan
from zerocalc.answers.other_tools import TOOLS, compare

FILE = Path(__file__).parent / "data" / "published" / "deepspeed_estimators.json"
PRESETS = {
    "gpt2-xl": "gpt2-xl",
    "llama2-7b": "llama-2-7b",
    "llama3-8b": "llama-3-8b",
    "llama2-70b": "llama-2-70b",
}
RUNS: list[dict[str, Any]] = [
    row
    for row in json.loads(FILE.read_text("utf-8"))["runs"]
    if row["model"] in PRESETS and not row["cpu_offload"] and not row.get("zero_init")
]
(TOOL,) = TOOLS


@pytest.mark.parametrize(
    "row", RUNS, ids=[f"{row['model']}-{row['stage']}-{row['nodes']}" for row in RUNS]
)
def test_the_estimator_byte_for_byte(row: dict[str, Any]) -> None:
    job = Job.model_validate(
        {
            "model": PRESETS[row["model"]],
            "cluster": {"gpus": row["gpus"] * row["nodes"]},
            "framework": "deepspeed",
            "zero": {"stage": row["stage"]},
        }
    )
    (compared,) = compare(plan(job), TOOL).candidates
    assert compared.tool_bytes == row["gpu_bytes"]
    assert compared.formula is not None
    assert compared.formula(**compared.inputs) == row["gpu_bytes"]


@given(
    framework=st.sampled_from(["paper", "deepspeed", "fsdp2"]),
    gpus=st.sampled_from([1, 8, 64]),
    seq=st.sampled_from([None, 1024]),
    bare=st.booleans(),
)
def test_differences_sum_up(framework: str, gpus: int, seq: int | None, bare: bool) -> None:
    model: Any = {"params": 10**9} if bare else "gpt2"
    answer = plan(
        Job.model_validate(
            {
                "model": model,
                "cluster": {"gpus": gpus},
                "framework": framework,
                "training": {"seq": seq},
            }
        )
    )
    for compared, candidate in zip(
        compare(answer, TOOL).candidates, answer.candidates, strict=True
    ):
        assert compared.peak_bytes == candidate.memory.gpu.peak_bytes
        if compared.tool_bytes is None:
            assert compared.differences == ()
            assert compared.stage < 2 or bare
        else:
            assert (
                compared.tool_bytes + sum(d.bytes for d in compared.differences)
                == compared.peak_bytes
            )


def test_in_the_table_and_in_json() -> None:
    asked = (
        "plan",
        "--model",
        "gpt2-xl",
        "--gpus",
        "8",
        "--framework",
        "deepspeed",
        "--stage",
        "2,3",
        "--compare-with",
        TOOL,
    )
    document = json.loads(run(*asked, "--json").out)
    plain = json.loads(run(*asked[:-2], "--json").out)
    comparison = document.pop("comparison")
    assert document == plain
    assert [c["tool_bytes"] for c in comparison["candidates"]] == [6619847600, 3826270000]
    printed = run(*asked).out
    assert "6.62" in printed
    assert "3.83" in printed
    assert "⌊2·Ψ + 18·Ψ/N⌋ = ⌊2·1,557,611,200 + 18·1,557,611,200/8⌋" in printed


def test_what_it_refuses() -> None:
    asked = ("plan", "--params", "1B", "--gpus", "8")
    assert (
        refused(run(*asked, "--compare-with", "abacus"))
        == f"error: --compare-with: 'abacus' is not one of {TOOL}"
    )
    assert "csv" in refused(run(*asked, "--compare-with", TOOL, "--format", "csv"))


@pytest.mark.parametrize(
    ("stages", "named"), [("0", "DDP"), ("1", "ZeRO-1"), ("0,1", "DDP, ZeRO-1"), ("1,2", "ZeRO-1")]
)
def test_stages_that_a_tool_has_no_figure_for_are_named(stages: str, named: str) -> None:
    ran = run("plan", "--params", "1B", "--gpus", "8", "--stage", stages, "--compare-with", TOOL)
    assert f"it has no figure for {named}: it estimates stages 2 and 3" in ran.out
    assert ("our peak" in ran.out) == ("2" in stages)
