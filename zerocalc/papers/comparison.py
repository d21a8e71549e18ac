"""ZeRO's stages side by side for one model: [ZeRO] figure 1 and what other papers add to it."""

from __future__ import annotations

import math
from typing import Any

from zerocalc.estimator import estimate
from zerocalc.formulas import published
from zerocalc.ledger import record
from zerocalc.papers.jobs import bare, bytes_of
from zerocalc.quantities import GB


@record
class StageRow:
    """One stage of the comparison; bytes per GPU, the volume in elements per parameter ([ZeRO] §7),
    the largest model in parameters.
    """

    name: str
    stage: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    states_bytes: int
    share_of_ddp: float
    volume_params: float
    ratio_to_ddp: float
    largest_parameters: int


@record
class TierRow:
    """One way to keep model states elsewhere: bytes of them by tier, and what crosses the host's
    link and the drives' in a step, all for one GPU.

    ``checkpoints_on_gpu``: the share of a GPU's activation checkpoints that stays on it.
    """

    name: str
    gpu_bytes: int
    cpu_bytes: int
    nvme_bytes: int
    host_traffic_bytes: int
    nvme_traffic_bytes: int
    checkpoints_on_gpu: float


@record
class Comparison:
    """The stages side by side for one model on one cluster, then ways to keep states elsewhere;
    model states alone.
    """

    title: str
    source: str
    parameters: int
    gpus: int
    memory_bytes: int
    stages: tuple[StageRow, ...]
    offloads: tuple[TierRow, ...]
    notes: tuple[str, ...]


PARTITIONED_OVER = 8
OFFLOADS: dict[str, dict[str, Any]] = {
    "ZeRO-3": {"stage": 3},
    "ZeRO-3, P_a": {"stage": 3, "tp": PARTITIONED_OVER},
    "ZeRO-Offload": {"stage": 2, "offload_optimizer": "cpu"},
    "ZeRO-Infinity, CPU": {
        "stage": 3,
        "offload_optimizer": "cpu",
        "offload_params": "cpu",
        "checkpoints": 0.0,
    },
    "ZeRO-Infinity, NVMe": {
        "stage": 3,
        "offload_optimizer": "nvme",
        "offload_params": "nvme",
        "checkpoints": 0.0,
    },
}
"""Rows of the comparison beyond the stages themselves."""


def comparison(
    *, parameters: int = 7_500_000_000, gpus: int = 64, memory_bytes: int = 32 * GB
) -> Comparison:
    """DDP and ZeRO-1, 2, 3 side by side: [ZeRO] figure 1, with each stage's traffic and the largest
    model that its states let fit.
    """
    job = bare(parameters, gpus)
    answers = [estimate(job, stage) for stage in job.stages]
    whole = answers[0].memory.gpu.states_bytes
    rows = []
    for answer in answers:
        gpu, volume = answer.memory.gpu, answer.communication.volume_params
        rows.append(
            StageRow(
                answer.name,
                answer.stage,
                bytes_of(gpu.terms, "weights"),
                bytes_of(gpu.terms, "gradients"),
                bytes_of(gpu.terms, "optimizer"),
                gpu.states_bytes,
                gpu.states_bytes / whole,
                volume,
                answer.communication.ratio_to_dp or 0.0,
                published.max_model(memory_bytes=memory_bytes, shards=gpus, stage=answer.stage),
            )
        )
    offloads = tuple(_tiers(name, parameters, gpus, **how) for name, how in OFFLOADS.items())
    notes = (
        "Model states only: activations, buffers and all-gathered parameters come on top, so the "
        "largest models are upper bounds",
        f"P_a splits checkpoints over tensor-parallel ranks, here {PARTITIONED_OVER}; "
        "[ZeRO]'s P_a+cpu and ZeRO-Infinity keep them on the CPU",
    )
    source = "[ZeRO] figure 1, §7, Table 2; [Off] §4; [Inf] §5"
    return Comparison(
        "ZeRO's stages side by side",
        source,
        parameters,
        gpus,
        memory_bytes,
        tuple(rows),
        offloads,
        notes,
    )


def _tiers(
    name: str,
    parameters: int,
    gpus: int,
    *,
    stage: int,
    tp: int = 1,
    checkpoints: float | None = None,
    **zero: str,
) -> TierRow:
    """One GPU's part of each tier; ``checkpoints``: the share of them that stays on it, where that
    is not what P_a leaves.
    """
    tp = math.gcd(tp, gpus)
    cluster = {"gpus": gpus, "gpus_per_node": 1, "nvme_capacity": "1PB"}
    answer = estimate(
        bare(parameters, gpus, cluster=cluster, parallel={"tp": tp}, zero={"stage": stage, **zero})
    )
    memory, traffic = answer.memory, answer.communication
    return TierRow(
        name,
        memory.gpu.states_bytes,
        memory.cpu.bytes_per_node if memory.cpu else 0,
        memory.nvme.bytes_per_node if memory.nvme else 0,
        traffic.host_bytes_per_gpu,
        traffic.nvme_bytes_per_gpu,
        1 / tp if checkpoints is None else checkpoints,
    )
