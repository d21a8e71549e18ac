"""What one pipeline stage, and one tensor-parallel rank, hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc.estimator import estimate
from zerocalc.modules.rank import rank
from zerocalc.spec.job import Job

GPT = {"kind": "gpt2", "hidden": 64, "heads": 4, "vocab": 1000, "positions": 128}


def job(model: dict[str, Any], **parallel: Any) -> Job:
    gpus = parallel.get("tp", 1) * parallel.get("pp", 1)
    return Job.model_validate({"model": model, "cluster": {"gpus": gpus}, "parallel": parallel, "training": {"seq": 128, "accumulation": 8}})


@given(layers=st.integers(1, 12), pp=st.integers(1, 4), chunks=st.integers(1, 3), tied=st.booleans())
def test_stages_hold_all_parameters_together(layers: int, pp: int, chunks: int, tied: bool) -> None:
    model = {**GPT, "layers": layers * pp * chunks, "tied_embeddings": tied}
    interleave = {"interleave": chunks} if pp in (2, 4) else {}
    stages = [rank(job(model, pp=pp, pipeline_stage=stage, **interleave)) for stage in range(1, pp + 1)]
    copied = 1000 * 64 if tied and pp > 1 else 0
    assert sum(stage.parameters for stage in stages) == stages[0].total + copied


def test_layers_that_do_not_divide_go_to_the_first_stages() -> None:
    groups = [rank(job({**GPT, "layers": 7}, pp=4, pipeline_stage=stage)).arch for stage in range(1, 5)]
    assert [arch.layers if arch else 0 for arch in groups] == [2, 2, 2, 1]


def test_a_stage_has_its_own_micro_batches_in_flight_and_ends() -> None:
    model = {**GPT, "layers": 8}
    names = {}
    for stage in (1, 4):
        terms = {t.name: t.bytes for t in estimate(job(model, pp=4, pipeline_stage=stage), 0).memory.gpu.terms}
        names[stage] = terms
    assert names[1]["mlp activations"] == 4 * names[4]["mlp activations"]
    assert "embedding dropout mask" in names[1]
    assert "embedding dropout mask" not in names[4]
    assert "logits" in names[4]
    assert "logits" not in names[1]


def test_tensor_parallel_ranks_each_hold_what_is_not_divided() -> None:
    whole, half = rank(job({**GPT, "layers": 2})).parameters, rank(job({**GPT, "layers": 2}, tp=2)).parameters
    norms = 5 * 2 * 64
    biases = 2 * 2 * 64  # behind attention's and the MLP's second product
    replicated = norms + biases + 128 * 64
    assert 2 * half == whole + replicated


def test_interleaved_stages_hold_fewer_chunks_the_later_they_are() -> None:
    last = estimate(job({**GPT, "layers": 16}, pp=4, interleave=2, pipeline_stage=4), 0).memory.gpu.terms
    (kept,) = [t for t in last if t.name == "mlp activations"]
    assert kept.inputs["chunks_in_flight"] == 4 * 2 + 3 - 2 * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": {**GPT, "layers": 4}, "cluster": {"gpus": 2}, "parallel": {"pp": 2, "pipeline_stage": 3}}, "3 is not one of the 2 stages"),
        ({"model": {"params": "1B"}, "cluster": {"gpus": 2}, "parallel": {"pp": 2, "pipeline_stage": 1}}, "needs an architecture"),
    ],
)
def test_stages_that_cannot_be_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job.model_validate(given)


def test_workspaces_are_counted_where_that_is_asked_for() -> None:
    given = {"model": {**GPT, "layers": 2}, "implementation": "megatron-te", "framework": "megatron", "training": {"seq": 128}}
    cluster = {"gpus": 1, "gpu": "h100-80g"}
    without = estimate(Job.model_validate({**given, "cluster": cluster}), 0).memory.gpu
    asked = estimate(Job.model_validate({**given, "cluster": {**cluster, "workspaces": True}}), 0).memory.gpu
    told = estimate(Job.model_validate({**given, "cluster": {**cluster, "workspaces": True, "cublas_workspace": "1MiB"}}), 0).memory.gpu
    mib = 1 << 20
    assert asked.peak_bytes - without.peak_bytes == 3 * 32 * mib
    assert told.peak_bytes - without.peak_bytes == (2 + 32) * mib
