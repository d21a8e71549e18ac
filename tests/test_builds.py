"""One answer, one model: all that a command prints comes of the architecture that its plan was made
of.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tests.running import run_line
from zerocalc.answers.planner import plan
from zerocalc.model import build
from zerocalc.model.architecture import Architecture
from zerocalc.spec.job import Job

JOBS = {
    "dense": "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 2048 --framework fsdp2",
    "experts": "--model mixtral-8x7b --gpus 64 --gpu h100-80g --seq 2048 --ep 8",
    "adapters": "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 2048 --lora-rank 16",
    "pipeline": "--model gpt2-xl --gpus 16 --gpu h100-80g --seq 1024 --pp 4 --accumulation 8",
    "offload": "--model llama-3-8b --gpus 8 --gpu h100-80g --seq 2048 --offload-optimizer cpu",
    "no sequence": "--model llama-3-8b --gpus 8",
}
COMMANDS = (
    "plan --json",
    "plan",
    "plan --format markdown",
    "plan --stages-table",
    "plan --compare-with deepspeed-estimator",
    "explain --json",
    "explain",
    "explain --term activations",
    "step",
)


PAIRS = [
    (command, job)
    for command in COMMANDS
    for job in JOBS
    if not (command.endswith("activations") and job == "no sequence")  # which are unknown then
]


@pytest.mark.parametrize(("command", "job"), PAIRS)
def test_the_model_is_built_once(command: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Architecture] = []

    def counted(*modules: Any, **known: Any) -> Architecture:
        built.append(Architecture(*modules, **known))
        return built[-1]

    monkeypatch.setattr(build, "Architecture", counted)
    ran = run_line(f"{command} {JOBS[job]}")
    assert ran.status == 0, ran.err
    assert len(built) == 1


@pytest.mark.parametrize("job", ["adapters", "pipeline"])
def test_details_go_to_another_process(job: str) -> None:
    document = json.loads(run_line(f"plan {JOBS[job]} --json").out)
    assert "details" not in document
    answer = plan(Job.model_validate(document["job"]))
    sent = pickle.loads(pickle.dumps(answer))
    assert sent == answer
    assert sent.details.saved_tensors == answer.details.saved_tensors != ()
    assert sent.details.pipeline_stages == answer.details.pipeline_stages
    assert sent.details.largest_leaf == answer.details.largest_leaf


def test_parameters_are_those_that_are_counted() -> None:
    for flags in ("--model mixtral-8x7b", "--model llama-3-8b --lora-rank 8"):
        counts = json.loads(run_line(f"params {flags.removeprefix('--model ')} --json").out)
        answer = json.loads(run_line(f"plan {flags} --gpus 8 --ep 1 --tp 2 --json").out)
        said = answer["parameters"]
        assert said == {**{key: counts[key] for key in said if key != "shards"}, "shards": 4}
        assert {c["rank_parameters"] < said["total"] for c in answer["candidates"]} == {True}
