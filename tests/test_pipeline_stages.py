"""What one pipeline stage, and one tensor-parallel rank, hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run, run_line
from tests.strategies import tables
from zerocalc.answers.document import plain
from zerocalc.answers.pipeline_stages import stages_table
from zerocalc.answers.planner import plan
from zerocalc.estimator import estimate
from zerocalc.sharding.rank import on_stage, rank
from zerocalc.spec.job import Job

GPT = {"kind": "gpt2", "hidden": 64, "heads": 4, "vocab": 1000, "positions": 128}


def job(model: dict[str, Any], **parallel: Any) -> Job:
    gpus = parallel.get("tp", 1) * parallel.get("pp", 1)
    return Job.model_validate(
        {
            "model": model,
            "cluster": {"gpus": gpus},
            "parallel": parallel,
            "training": {"seq": 128, "accumulation": 8},
        }
    )


@given(
    layers=st.integers(1, 12), pp=st.integers(1, 4), chunks=st.integers(1, 3), tied=st.booleans()
)
def test_stages_hold_all_parameters_together(layers: int, pp: int, chunks: int, tied: bool) -> None:
    model = {**GPT, "layers": layers * pp * chunks, "tied_embeddings": tied}
    interleave = {"interleave": chunks} if pp in (2, 4) else {}
    stages = [
        rank(job(model, pp=pp, pipeline_stage=stage, **interleave)) for stage in range(1, pp + 1)
    ]
    copied = 1000 * 64 if tied and pp > 1 else 0
    assert sum(stage.parameters for stage in stages) == stages[0].total + copied


def test_layers_that_do_not_divide_go_to_the_first_stages() -> None:
    groups = [
        rank(job({**GPT, "layers": 7}, pp=4, pipeline_stage=stage)).arch for stage in range(1, 5)
    ]
    assert [arch.layers if arch else 0 for arch in groups] == [2, 2, 2, 1]


def test_a_stage_has_its_own_micro_batches_in_flight_and_ends() -> None:
    model = {**GPT, "layers": 8}
    names = {}
    for stage in (1, 4):
        terms = {
            t.name: t.bytes
            for t in estimate(job(model, pp=4, pipeline_stage=stage), 0).memory.gpu.terms
        }
        names[stage] = terms
    assert names[1]["mlp activations"] == 4 * names[4]["mlp activations"]
    assert "embedding dropout mask" in names[1]
    assert "embedding dropout mask" not in names[4]
    assert "logits" in names[4]
    assert "logits" not in names[1]


def test_tensor_parallel_ranks_each_hold_what_is_not_divided() -> None:
    whole, half = (
        rank(job({**GPT, "layers": 2})).parameters,
        rank(job({**GPT, "layers": 2}, tp=2)).parameters,
    )
    norms = 5 * 2 * 64
    biases = 2 * 2 * 64  # behind attention's and the MLP's second product
    replicated = norms + biases + 128 * 64
    assert 2 * half == whole + replicated


def test_interleaved_stages_hold_fewer_chunks_the_later_they_are() -> None:
    last = estimate(
        job({**GPT, "layers": 16}, pp=4, interleave=2, pipeline_stage=4), 0
    ).memory.gpu.terms
    (kept,) = [t for t in last if t.name == "mlp activations"]
    assert kept.inputs["chunks_in_flight"] == 4 * 2 + 3 - 2 * 3


@st.composite
def pipelines(draw: st.DrawFn) -> Job:
    """A job of several pipeline stages, none of which is named."""
    table = draw(tables(bare=False))
    table["model"].pop("trainable", None)
    table["parallel"].pop("pipeline_stage", None)
    if table["parallel"]["pp"] == 1:
        table["model"]["layers"] += 1
        table["parallel"]["pp"] = 2
        table["cluster"]["gpus"] *= 2
    return Job.model_validate(table)


@given(pipelines())
def test_the_answer_is_the_worst_stages(job: Job) -> None:
    assert job.by_stage
    every = [on_stage(job, number) for number in range(1, job.parallel.pp + 1)]
    for stage in job.stages:
        worst = estimate(job, stage)
        answers = [estimate(own, stage) for own in every]
        peaks = [answer.memory.gpu.reserved_bytes for answer in answers]
        assert worst.memory.gpu.reserved_bytes == max(peaks)
        assert worst.pipeline_stage == 1 + peaks.index(max(peaks))
        expected = plain(answers[peaks.index(max(peaks))])
        times = [answer.time for answer in answers if answer.time is not None]
        assert plain(worst) == {
            **expected,
            "time": plain(max(times, key=lambda time: time.step_seconds)) if times else None,
        }


@pytest.mark.parametrize(
    ("framework", "layers", "pp", "interleave", "expected"),
    [
        ("paper", 7, 4, 1, [2, 2, 2, 1]),
        ("torchtitan", 32, 4, 1, [8, 9, 8, 7]),
        ("torchtitan", 126, 8, 2, [15, 16, 16, 16, 16, 16, 16, 15]),
        ("megatron", 8, 2, 2, [4, 4]),
    ],
)
def test_how_layers_are_assigned(
    framework: str, layers: int, pp: int, interleave: int, expected: list[int]
) -> None:
    """torchtitan 0.2.2, distributed/pipeline_parallel.py: generate_llm_fqn_per_model_part counts
    embedding and head as a layer each.
    """
    given = {
        "model": {**GPT, "layers": layers},
        "cluster": {"gpus": pp},
        "framework": framework,
        "training": {"accumulation": 8},
    }
    stages = [
        Job.model_validate(
            {**given, "parallel": {"pp": pp, "interleave": interleave, "pipeline_stage": n + 1}}
        )
        for n in range(pp)
    ]
    assert [arch.layers for arch in [rank(stage).arch for stage in stages] if arch] == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {
                "model": {**GPT, "layers": 7},
                "cluster": {"gpus": 2},
                "parallel": {"pp": 2},
                "framework": "megatron",
            },
            "do not divide the 7 layers",
        ),
        (
            {
                "model": {**GPT, "layers": 4},
                "cluster": {"gpus": 4},
                "parallel": {"pp": 4},
                "framework": "torchtitan",
            },
            "one gets none of the 4 layers",
        ),
        (
            {
                "model": {**GPT, "layers": 4},
                "cluster": {"gpus": 2},
                "parallel": {"pp": 2, "pipeline_stage": 3},
            },
            "3 is not one of the 2 pipeline stages",
        ),
        (
            {
                "model": {"params": "1B"},
                "cluster": {"gpus": 2},
                "parallel": {"pp": 2, "pipeline_stage": 1},
            },
            "needs an architecture",
        ),
    ],
)
def test_stages_that_cannot_be_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job.model_validate(given)


def test_workspaces_are_counted_where_that_is_asked_for() -> None:
    given = {
        "model": {**GPT, "layers": 2},
        "implementation": "megatron-te",
        "framework": "megatron",
        "training": {"seq": 128},
    }
    cluster = {"gpus": 1, "gpu": "h100-80g"}
    without = estimate(Job.model_validate({**given, "cluster": cluster}), 0).memory.gpu
    asked = estimate(
        Job.model_validate({**given, "cluster": {**cluster, "workspaces": True}}), 0
    ).memory.gpu
    told = estimate(
        Job.model_validate(
            {**given, "cluster": {**cluster, "workspaces": True, "cublas_workspace": "1MiB"}}
        ),
        0,
    ).memory.gpu
    mib = 1 << 20
    assert asked.peak_bytes - without.peak_bytes == 3 * 32 * mib
    assert told.peak_bytes - without.peak_bytes == (2 + 32) * mib


@given(pipelines())
def test_the_table_of_stages_has_every_stage_and_all_parameters(job: Job) -> None:
    rows = stages_table(plan(job))
    for stage in job.stages:
        own = [row for row in rows if row.stage == stage]
        assert [number for row in own for number in range(row.first, row.last + 1)] == list(
            range(1, job.parallel.pp + 1)
        )
        held = sum(
            (row.parameters - row.copied_parameters) * (row.last - row.first + 1) for row in own
        )
        assert (
            held == rank(job).total or job.parallel.tp > 1
        )  # norms are on every tensor-parallel rank
        assert sum(row.layers * (row.last - row.first + 1) for row in own) == job.model.layer_count


def test_the_table_of_stages_in_text_and_json() -> None:
    asked = (
        "plan",
        "--model",
        "gpt2-xl",
        "--gpus",
        "8",
        "--pp",
        "4",
        "--accumulation",
        "8",
        "--seq",
        "1024",
        "--stage",
        "1",
        "--gpu",
        "a100-80g",
    )
    printed = run(*asked, "--stages-table").out
    assert "stage 2-3" not in printed  # they differ in micro-batches in flight
    assert "the last stage has its own copy of the tied embedding (80.41M)" in printed
    document, plain_document = (
        json.loads(run(*asked, "--stages-table", "--json").out),
        json.loads(run(*asked, "--json").out),
    )
    stages = document.pop("stages")
    assert document == plain_document
    assert [row["in_flight"] for row in stages] == [4, 3, 2, 1]
    assert (
        max(row["peak_bytes"] for row in stages)
        == document["candidates"][0]["memory"]["gpu"]["peak_bytes"]
    )


def test_a_table_of_stages_that_are_not_known_is_refused() -> None:
    line = refused(run("plan", "--params", "1B", "--gpus", "8", "--pp", "2", "--stages-table"))
    assert line.startswith("error: --stages-table: only an even share")


@pytest.mark.parametrize(
    ("flags", "assigned"),
    [
        (
            "--first-stage-layers 7 --last-stage-layers 7",
            "126 layers assigned to pipeline stages as 7, 14 × 8, 7",
        ),
        (
            "--first-stage-layers 21 --last-stage-layers 7",
            "126 layers assigned to pipeline stages as 21, 15 × 7",
        ),
    ],
)
def test_the_ends_of_a_pipeline_have_the_layers_that_are_given(flags: str, assigned: str) -> None:
    """megatron-core 0.16.1, transformer_block.py: get_num_layers_to_build."""
    line = (
        "plan --model llama-3.1-405b --gpus 1024 --framework megatron --stage 1 --tp 8 --pp "
        f"16 --sequence-parallel --seq 4096 {flags}"
    )
    ran = run_line(f"{line} --stages-table --json")
    document = json.loads(ran.out)
    assert assigned in document["assumptions"]
    assert (
        sum(row["layers"] * (row["last"] - row["first"] + 1) for row in document["stages"]) == 126
    )
    exported = run_line(line.replace("plan", "export --to megatron")).out
    assert "--decoder-first-pipeline-num-layers" in exported


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--pp 16",
            "--pp: 16 stages do not divide the 126 layers, and megatron assigns layers evenly "
            "only; give --first-stage-layers or --last-",
        ),
        (
            "--pp 16 --first-stage-layers 7",
            "--first-stage-layers: 15 stages do not divide the 119 remaining layers",
        ),
        (
            "--pp 2 --first-stage-layers 7 --last-stage-layers 8",
            "--first-stage-layers: leaves 111 of 126 layers for 0 stages",
        ),
        (
            "--first-stage-layers 7",
            "--first-stage-layers: needs --pp above 1",
        ),
        (
            "--pp 16 --interleave 2 --accumulation 16 --first-stage-layers 7 --last-stage-layers 7",
            "--first-stage-layers: 2 chunks do not divide",
        ),
    ],
)
def test_layers_that_no_pipeline_can_have(flags: str, words: str) -> None:
    line = (
        "plan --model llama-3.1-405b --gpus 1024 --framework megatron --stage 1 --tp 8 "
        f"--sequence-parallel --seq 4096 {flags}"
    )
    assert refused(run_line(line)).startswith(f"error: {words}")
