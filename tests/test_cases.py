"""Questions that people asked with numbers (tests/data/cases.json): one test a number; those that
cannot be asked yet stand there with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zerocalc as zc
from zerocalc import presets
from zerocalc.estimator import estimate
from zerocalc.formulas import estimators, published
from zerocalc.results import Estimate
from zerocalc.sharding.rank import rank
from zerocalc.spec.job import Job

DATA = Path(__file__).parent / "data"
CASES: dict[str, list[dict[str, Any]]] = json.loads((DATA / "cases.json").read_text("utf-8"))
UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "TFLOPS": 10**12, "parameters": 1, "ratio": 1}
QUESTIONS = 50


def job_of(given: dict[str, Any]) -> Job:
    """A row's job; its model may be laid over a preset (``base``) or read from a config.json of the
    tests.
    """
    model = given["model"]
    if isinstance(model, dict) and "base" in model:
        own = {key: value for key, value in model.items() if key != "base"}
        model = {**presets.load("models", model["base"]), **own}
    elif isinstance(model, dict) and "config" in model:
        model = zc.load_model(str(DATA / "configs" / f"{model['config']}.json"))
    return Job.model_validate({**given, "model": model})


def terms(answer: Estimate, names: str) -> int:
    """The sum of some terms, each of which there is."""
    sizes = {t.name: t.bytes for t in answer.memory.gpu.terms}
    return sum(sizes[name] for name in names.split(","))


def scores(job: Job) -> int:
    """What all layers keep that grows with the square of the sequence."""
    arch, seq = rank(job).arch, job.training.seq
    assert arch is not None
    return sum(
        count * t.bytes
        for count, modules in arch.groups
        for m in modules
        for t in m.saved
        if t.shape[-1] == seq
    )


def answered(row: dict[str, Any]) -> float:
    """Our number, in the row's unit."""
    if "formula" in row:
        return estimator(row["formula"], row["inputs"]) / UNITS[row["unit"]]
    job = job_of(row["job"])
    name, _, words = row["quantity"].partition(":")
    if name == "parameters":
        return rank(job).total
    if name == "scores":
        return scores(job) / UNITS[row["unit"]]
    answer = estimate(job, row["stage"])
    gpu = answer.memory.gpu
    quantities: dict[str, Callable[[], float | None]] = {
        "states": lambda: gpu.states_bytes,
        "host": lambda: answer.memory.cpu.bytes_per_node if answer.memory.cpu else None,
        "terms": lambda: terms(answer, words),
        "layers": lambda: sum(
            t.bytes
            for t in gpu.terms
            if t.kind == "activations"
            and t.moments[0] == "forward"
            and t.moments[-1] == "backward_start"
        ),
        "layer": lambda: rank(job).part("layer"),
        "sent": lambda: answer.communication.sent_bytes_per_gpu,
        "ratio_to_dp": lambda: answer.communication.ratio_to_dp,
        "peak_flops": lambda: (
            job.cluster.gpu.bf16_dense_flops_per_second if job.cluster.gpu else None
        ),
    }
    found = quantities[name]()
    assert found is not None
    return found / UNITS[row["unit"]]


def estimator(name: str, inputs: dict[str, int]) -> float:
    """A formula by its name, or one of DeepSpeed's estimators: stage, what is offloaded, and
    where.
    """
    if "/" not in name:
        formula = getattr(estimators, name, None) or getattr(published, name)
        return float(formula.function(**inputs))
    stage, offloaded, where = name.split("/")
    return estimators.evaluate(
        getattr(estimators.ESTIMATORS[int(stage), offloaded, True], where), **inputs
    )


@pytest.mark.parametrize("row", CASES["rows"], ids=[row["id"] for row in CASES["rows"]])
def test_a_question_is_answered_with_its_number(row: dict[str, Any]) -> None:
    assert answered(row) == pytest.approx(row["expected"], rel=0, abs=row["tolerance"])


def test_every_question_is_asked_or_left_out_with_a_reason() -> None:
    asked = {row["id"].split()[0] for row in CASES["rows"]}
    left = {row["id"] for row in CASES["left_out"]}
    assert len(asked | left) == QUESTIONS
    assert not asked & left
    assert all(row["reason"] for row in CASES["left_out"])
    assert all(row["tolerance"] == 0 or row["tolerance_reason"] for row in CASES["rows"])
