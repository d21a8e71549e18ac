"""The library as Python sees it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import zerocalc as zc
from tests.running import environment, run, run_line

FUNCTIONS = ("estimate", "plan", "count_parameters", "load_model", "to_json")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(
    "order", list(permutations(["estimate", "plan", "count_parameters"])), ids="-".join
)
def test_public_functions_stay_functions(order: tuple[str, ...]) -> None:
    """A module of the same name, once imported, must not take a function's place."""
    job = 'job = zc.Job(model="gpt2", cluster=zc.Cluster(gpus=8))'
    calls = {
        "estimate": "zc.estimate(job, stage=3)",
        "plan": "zc.plan(job)",
        "count_parameters": "zc.count_parameters(job.model)",
    }
    python("\n".join(["import zerocalc as zc", job, *(calls[name] for name in order)]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_after_everything_is_loaded(name: str) -> None:
    python(
        "import zerocalc as zc\nzc.plan(zc.Job(model='gpt2', "
        f"cluster=zc.Cluster(gpus=8)))\nassert callable(zc.{name}), zc.{name}"
    )


def test_star_import_gives_what_is_named() -> None:
    python(
        "from zerocalc import *\nassert callable(plan) and callable(estimate) and "
        "Job(model='gpt2', cluster=Cluster(gpus=1))"
    )


def test_python_and_the_command_line_agree() -> None:
    job = zc.Job.model_validate(
        {
            "model": "llama-3-8b",
            "cluster": {"gpus": 8, "gpu": "h100-80g"},
            "training": {"seq": 8192},
        }
    )
    printed = run_line("plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192 --json").out
    assert zc.to_json(zc.plan(job)) + "\n" == printed


def test_the_contracts_keys() -> None:
    """Others read these; a change needs a new schema_version, an addition does not."""
    answer = json.loads(
        run_line(
            "plan --layers 4 --hidden 512 --heads 8 --seq 128 --gpus 8 --gpu-memory 80GiB --json"
        ).out
    )
    assert answer["schema_version"] == 1
    assert {"job", "candidates", "verdict", "recommended", "assumptions", "notes"} <= set(answer)
    assert [(c["name"], c["stage"]) for c in answer["candidates"]] == [
        ("ddp", 0),
        ("zero-1", 1),
        ("zero-2", 2),
        ("zero-3", 3),
    ]
    assert set(answer["recommended"]) >= {"name", "why"}
    for candidate in answer["candidates"]:
        assert {"name", "stage", "memory", "communication", "time", "fits"} <= set(candidate)
        gpu, traffic = candidate["memory"]["gpu"], candidate["communication"]
        assert {"gpu", "cpu", "nvme"} <= set(candidate["memory"])
        assert {
            "states_bytes",
            "peak_bytes",
            "peak_moment",
            "moments",
            "at_peak",
            "reserved_bytes",
            "unknown",
            "terms",
        } <= set(gpu)
        assert list(gpu["moments"]) == [
            "load",
            "forward",
            "loss",
            "backward_start",
            "backward_end",
            "step",
        ]
        assert set(gpu["at_peak"]) >= {"states_bytes", "activations_bytes", "other_bytes"}
        for term in gpu["terms"]:
            assert {
                "name",
                "kind",
                "tier",
                "bytes",
                "moments",
                "formula",
                "inputs",
                "source",
                "assumption",
            } <= set(term)
            assert isinstance(term["formula"], str)
            assert isinstance(term["bytes"], int)
        assert {
            "volume_params",
            "ratio_to_dp",
            "sent_bytes_per_gpu",
            "inter_node_bytes_per_gpu",
            "host_bytes_per_gpu",
            "collectives",
        } <= set(traffic)
        for call in traffic["collectives"]:
            assert {
                "moment",
                "op",
                "what",
                "dtype",
                "tensor_bytes",
                "count",
                "group",
                "ranks",
                "fabric",
                "sent_bytes",
                "overlapped",
            } <= set(call)
            assert {"formula", "inputs", "source"} <= set(call)


def test_count_parameters_keys() -> None:
    counts = json.loads(run("params", "gpt2", "--json").out)
    assert counts["schema_version"] == 1
    assert {
        "total",
        "trainable",
        "active",
        "components",
        "largest_leaf",
        "largest_block",
        "notes",
    } <= set(counts)
    assert set(counts["components"]) == {
        "embedding",
        "head",
        "attention",
        "mlp",
        "experts",
        "norms",
        "other",
    }
    assert sum(counts["components"].values()) == counts["total"]


def test_estimate_wants_one_stage() -> None:
    job = zc.Job.model_validate({"model": {"params": "1B"}, "cluster": {"gpus": 8}})
    from zerocalc.estimator import estimate

    with pytest.raises(ValueError, match="name one of the stages 0, 1, 2, 3"):
        estimate(job)
    with pytest.raises(ValueError, match="4 is not a stage of paper; it has 0, 1, 2, 3"):
        estimate(job, 4)


def test_a_bare_number_has_nothing_to_count() -> None:
    with pytest.raises(ValueError, match="give an architecture"):
        zc.count_parameters(zc.Model.model_validate({"params": "7B"}))


def test_jobs_are_frozen_and_hashable_by_value() -> None:
    job = zc.Job.model_validate({"model": "gpt2", "cluster": {"gpus": 8}})
    assert job == zc.Job.model_validate({"model": "gpt2", "cluster": {"gpus": "8"}})
    with pytest.raises(ValueError, match="frozen"):
        setattr(job.cluster, "gpus", 9)  # noqa: B010 - mypy knows that it is frozen
    assert hash(job) == hash(zc.Job.model_validate(job.model_dump(mode="json")))


JOB = {"model": "gpt2", "cluster": {"gpus": 8}}


@pytest.mark.parametrize("wrong", ["gpt2", JOB, None, 5, ["gpt2"]])
def test_functions_say_what_they_take(wrong: Any) -> None:
    for function in (zc.plan, lambda job: zc.estimate(job, stage=1)):
        with pytest.raises(TypeError, match=rf"takes a Job, not {type(wrong).__name__}; zerocalc"):
            function(wrong)
    if not isinstance(wrong, str):
        for named in (zc.count_parameters, zc.load_model):
            with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
                named(wrong)
    if not isinstance(wrong, (dict, list)):
        with pytest.raises(
            TypeError, match=f"to_json takes a result, .* not {type(wrong).__name__}"
        ):
            zc.to_json(wrong)


def test_only_results_are_json() -> None:
    for wrong in (object(), {"a": object()}, zc, zc.Job):
        with pytest.raises(TypeError, match="to_json takes a result"):
            zc.to_json(wrong)
    job = zc.Job.model_validate(JOB)
    assert json.loads(zc.to_json(job)) == job.model_dump(mode="json")
    assert json.loads(zc.to_json({"plans": [zc.plan(job)]}))["plans"][0]["schema_version"] == 1


def test_the_model_of_a_job_is_counted() -> None:
    with pytest.raises(TypeError, match=r"not Job; its model is job\.model"):
        zc.count_parameters(zc.Job.model_validate(JOB))  # type: ignore[arg-type]


def test_models_by_name_and_by_path(tmp_path: Path) -> None:
    assert zc.count_parameters("llama-3-8b").total == 8_030_261_248
    assert zc.load_model("gpt2") == zc.Job.model_validate(JOB).model
    file = tmp_path / "model.toml"
    file.write_text("layers = 2\nhidden = 64\nheads = 4\n")
    assert (
        zc.count_parameters(file)
        == zc.count_parameters(str(file))
        == zc.count_parameters(zc.load_model(file))
    )
    for name, words in {
        "llama-3-9b": "nearest: llama-3-8b",
        "": "is not a preset",
        str(tmp_path / "none.json"): "no such file",
    }.items():
        for function in (zc.count_parameters, zc.load_model):
            with pytest.raises(ValueError, match=words):
                function(name)
    file.write_text("layers = 2\nhiden = 64\n")
    with pytest.raises(
        ValueError, match=r"model\.toml: hiden: is not a known field; nearest: hidden"
    ):
        zc.load_model(file)


@pytest.mark.parametrize("stage", [9, -1, "3", True, 1.5])
def test_stages_that_are_none(stage: Any) -> None:
    with pytest.raises(ValueError, match="is not a stage of paper; it has 0, 1, 2, 3"):
        zc.estimate(zc.Job.model_validate(JOB), stage=stage)


def test_answers_can_be_sent_to_another_process() -> None:
    job = zc.Job.model_validate(
        {
            "model": "llama-3-8b",
            "cluster": {"gpus": 8, "gpu": "h100-80g"},
            "training": {"seq": 2048},
        }
    )
    answer = zc.plan(job)
    assert zc.to_json(pickle.loads(pickle.dumps(answer))) == zc.to_json(answer)
