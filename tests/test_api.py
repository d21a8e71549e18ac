"""The library as Python sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations

import pytest

import zerocalc as zc
from tests.running import environment, run, run_line

FUNCTIONS = ("estimate", "plan", "count_parameters", "load_model", "to_json")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("order", list(permutations(["estimate", "plan", "count_parameters"])), ids="-".join)
def test_public_functions_stay_functions(order: tuple[str, ...]) -> None:
    """A module of the same name, once imported, must not take a function's place."""
    job = 'job = zc.Job(model="gpt2", cluster=zc.Cluster(gpus=8))'
    calls = {"estimate": "zc.estimate(job, stage=3)", "plan": "zc.plan(job)", "count_parameters": "zc.count_parameters(job.model)"}
    python("\n".join(["import zerocalc as zc", job, *(calls[name] for name in order)]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_after_everything_is_loaded(name: str) -> None:
    python(f"import zerocalc as zc\nzc.plan(zc.Job(model='gpt2', cluster=zc.Cluster(gpus=8)))\nassert callable(zc.{name}), zc.{name}")


def test_star_import_gives_what_is_named() -> None:
    python("from zerocalc import *\nassert callable(plan) and callable(estimate) and Job(model='gpt2', cluster=Cluster(gpus=1))")


def test_python_and_the_command_line_agree() -> None:
    job = zc.Job.model_validate({"model": "llama-3-8b", "cluster": {"gpus": 8, "gpu": "h100-80g"}, "training": {"seq": 8192}})
    printed = run_line("plan --model llama-3-8b --gpus 8 --gpu h100-80g --seq 8192 --json").out
    assert zc.to_json(zc.plan(job)) + "\n" == printed


def test_the_contracts_keys() -> None:
    """Others read these; a change needs a new schema_version, an addition does not."""
    answer = json.loads(run_line("plan --layers 4 --hidden 512 --heads 8 --seq 128 --gpus 8 --gpu-memory 80GiB --json").out)
    assert answer["schema_version"] == 1
    assert {"job", "candidates", "verdict", "recommended", "assumptions", "notes"} <= set(answer)
    assert [(c["name"], c["stage"]) for c in answer["candidates"]] == [("ddp", 0), ("zero-1", 1), ("zero-2", 2), ("zero-3", 3)]
    assert set(answer["recommended"]) >= {"name", "why"}
    for candidate in answer["candidates"]:
        assert {"name", "stage", "memory", "communication", "time", "fits"} <= set(candidate)
        gpu, traffic = candidate["memory"]["gpu"], candidate["communication"]
        assert {"gpu", "cpu", "nvme"} <= set(candidate["memory"])
        assert {"states_bytes", "peak_bytes", "peak_moment", "moments", "at_peak", "reserved_bytes", "unknown", "terms"} <= set(gpu)
        assert list(gpu["moments"]) == ["load", "forward", "loss", "backward_start", "backward_end", "step"]
        assert set(gpu["at_peak"]) >= {"states_bytes", "activations_bytes", "other_bytes"}
        for term in gpu["terms"]:
            assert {"name", "kind", "tier", "bytes", "moments", "formula", "inputs", "source", "assumption"} <= set(term)
            assert isinstance(term["formula"], str)
            assert isinstance(term["bytes"], int)
        assert {"volume_params", "ratio_to_dp", "sent_bytes_per_gpu", "inter_node_bytes_per_gpu", "host_bytes_per_gpu", "collectives"} <= set(traffic)
        for call in traffic["collectives"]:
            assert {"moment", "op", "what", "dtype", "tensor_bytes", "count", "group", "ranks", "fabric", "sent_bytes", "overlapped"} <= set(call)
            assert {"formula", "inputs", "source"} <= set(call)


def test_count_parameters_keys() -> None:
    counts = json.loads(run("params", "gpt2", "--json").out)
    assert counts["schema_version"] == 1
    assert {"total", "trainable", "active", "components", "largest_leaf", "largest_block", "notes"} <= set(counts)
    assert set(counts["components"]) == {"embedding", "head", "attention", "mlp", "experts", "norms", "other"}
    assert sum(counts["components"].values()) == counts["total"]


def test_estimate_wants_one_stage() -> None:
    job = zc.Job.model_validate({"model": {"params": "1B"}, "cluster": {"gpus": 8}})
    from zerocalc.estimator import estimate

    with pytest.raises(ValueError, match="name one stage of 0, 1, 2, 3"):
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
        setattr(job.cluster, "gpus", 9)  # noqa: B010 - the type checker knows that it is frozen
    assert hash(job) == hash(zc.Job.model_validate(job.model_dump(mode="json")))
