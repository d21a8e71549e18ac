"""Reference figures (tests/data/reference.json), each with its source: one test a row.

A row is a job, a stage, a quantity and what it must be. Tolerance 0 means equal; any other has its
reason in the row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerocalc.estimator import estimate
from zerocalc.results import Estimate
from zerocalc.schedule import OPERATIONS, Collective
from zerocalc.sharding.rank import rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.vocab_parallel import SOURCE as ENDS_SOURCE

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "reference.json").read_text("utf-8")
)
FIELDS = {"id", "source", "assumptions", "job", "stage", "quantity", "expected", "tolerance"}


def chosen(answer: Estimate, words: str) -> list[Collective]:
    """The collectives that match every word: a phase, an operation or a group; of tensor
    parallelism those of layers, which is what papers count.
    """
    every = [c for c in answer.communication.collectives if c.source != ENDS_SOURCE]
    return [c for c in every if set(words.split()) <= {c.moment, c.op, c.group}]


def elements(collectives: list[Collective]) -> int:
    """Elements moved, an all-reduce twice."""
    return sum(
        OPERATIONS[c.op].volume * c.tensor_bytes * c.count // DTYPE_BYTES[c.dtype]
        for c in collectives
    )


def of_kind(answer: Estimate, kind: str) -> int:
    return sum(t.bytes for t in answer.memory.gpu.terms if t.kind == kind)


def one_term(answer: Estimate, name: str) -> int:
    (found,) = [t for t in answer.memory.gpu.terms if t.name == name]
    return found.bytes


def one_size(answer: Estimate, words: str) -> int:
    (size,) = {c.tensor_bytes for c in chosen(answer, words)}
    return size


def layer_activations(answer: Estimate) -> int:
    """What all layers keep from forward for backward."""
    return sum(
        t.bytes
        for t in answer.memory.gpu.terms
        if t.kind == "activations"
        and t.moments[0] == "forward"
        and t.name.removesuffix(" activations") in {"attention", "mlp", "norms"}
    )


def partitioned_share(answer: Estimate) -> float:
    return elements(chosen(answer, "all_gather tp")) / elements(chosen(answer, "all_reduce tp"))


def host_bytes(answer: Estimate) -> int:
    assert answer.memory.cpu is not None
    return answer.memory.cpu.bytes_per_node


QUANTITIES: dict[str, Callable[[Estimate], float | None]] = {
    "states_bytes": lambda answer: answer.memory.gpu.states_bytes,
    "states_gb": lambda answer: answer.memory.gpu.states_bytes / 1e9,
    "optimizer_bytes": lambda answer: of_kind(answer, "optimizer"),
    "reserved_less_peak": lambda answer: (
        answer.memory.gpu.reserved_bytes - answer.memory.gpu.peak_bytes
    ),
    "layer_activations": layer_activations,
    "host_bytes_per_node": host_bytes,
    "host_sent_bytes": lambda answer: answer.communication.host_bytes_per_gpu,
    "volume_params": lambda answer: answer.communication.volume_params,
    "ratio_to_dp": lambda answer: answer.communication.ratio_to_dp,
    "sent_bytes": lambda answer: answer.communication.sent_bytes_per_gpu,
    "tp_volume_elements": lambda answer: elements(chosen(answer, "tp")),
    "pa_share_of_tp": partitioned_share,
}
QUANTITIES_OF: dict[str, Callable[[Estimate, str], int]] = {
    "kind": of_kind,
    "term": one_term,
    "calls": lambda answer, words: sum(c.count for c in chosen(answer, words)),
    "volume": lambda answer, words: elements(chosen(answer, words)),
    "tensor_bytes": one_size,
    "group_sent": lambda answer, words: sum(c.sent_bytes for c in chosen(answer, words)),
}


def measured(row: dict[str, Any]) -> float | None:
    job = Job.model_validate(row["job"])
    name, _, words = row["quantity"].partition(":")
    if name == "rank_parameters":
        return rank(job).parameters
    answer = estimate(job, row["stage"])
    if name == "optimizer_bytes_per_parameter":
        return of_kind(answer, "optimizer") / rank(job).parameters
    return QUANTITIES_OF[name](answer, words) if words else QUANTITIES[name](answer)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_reference(row: dict[str, Any]) -> None:
    value = measured(row)
    if row["tolerance"] == 0:
        assert value == row["expected"]
    else:
        assert value == pytest.approx(row["expected"], abs=row["tolerance"])


def test_rows_are_complete() -> None:
    for row in ROWS:
        reason = {"tolerance_reason"} if row["tolerance"] else set()
        assert set(row) == FIELDS | reason, row["id"]
        assert row["source"], row["id"]
    assert len({row["id"] for row in ROWS}) == len(ROWS)
