"""Traffic of tensor and pipeline parallelism, and of partitioned activations ([ZeRO] §8, [SP] §4.2)."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.modules.rank import Rank
from zerocalc.schedule import Collective, Fabric, Group, Op, Phase, collective
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

TENSOR_PARALLEL_SOURCE = "[ZeRO] §8; [SP] §4.2.2"
SYNCS_PER_PASS = 2
"""[ZeRO] §8: one all-reduce after attention and one after the MLP in forward, the same in backward, and in a recomputed forward."""


def model_parallel(job: Job, rank: Rank) -> list[Collective]:
    """What tensor- and pipeline-parallel ranks send, and what P_a adds; nothing while the sequence length is unknown."""
    if rank.arch is None or not rank.tokens:
        return []
    calls = _Calls(job, rank.tokens * rank.arch.hidden, ceil_div(rank.arch.layers, job.parallel.pp))
    return calls.tensor_parallel() + calls.partitioned_activations() + calls.pipeline_parallel()


class _Calls:
    def __init__(self, job: Job, elements: int, layers: int) -> None:
        self.job = job
        self.micro_batches = job.training.accumulation
        self.layer_calls = layers * self.micro_batches
        self.tensor_bytes = elements * DTYPE_BYTES[job.recipe.compute]
        self.tp = job.parallel.tp

    def tensor_parallel(self) -> list[Collective]:
        if self.tp == 1:
            return []
        ops: tuple[Op, ...] = ("all_gather", "reduce_scatter") if self.job.parallel.sequence_parallel else ("all_reduce",)
        passes: list[tuple[Phase, str]] = [("forward", "activations"), ("backward", "activation gradients")]
        if self.job.training.recompute == "full":
            passes.append(("backward", "recomputed activations"))
        return [
            self._entry(phase, op, what, self.tensor_bytes, SYNCS_PER_PASS * self.layer_calls, "tp", self.tp, TENSOR_PARALLEL_SOURCE)
            for phase, what in passes
            for op in ops
        ]

    def partitioned_activations(self) -> list[Collective]:
        zero = self.job.zero
        if not zero.partition_activations:
            return []
        out = [self._entry("backward", "all_gather", "checkpoints", self.tensor_bytes, self.layer_calls, "tp", self.tp, "[ZeRO] §8")]
        if zero.cpu_checkpointing:
            part = ceil_div(self.tensor_bytes, self.tp)
            out += [
                self._entry("forward", "copy", "checkpoints to the host", part, self.layer_calls, "host", 1, "[ZeRO] §8", "pcie"),
                self._entry("backward", "copy", "checkpoints from the host", part, self.layer_calls, "host", 1, "[ZeRO] §8", "pcie"),
            ]
        return out

    def pipeline_parallel(self) -> list[Collective]:
        pp = self.job.parallel.pp
        if pp == 1:
            return []
        part = ceil_div(self.tensor_bytes, self.tp if self.job.parallel.sequence_parallel else 1)
        boundary: list[tuple[Phase, str]] = [("forward", "activations to the next stage"), ("backward", "gradients to the stage before")]
        return [self._entry(phase, "send_recv", what, part, self.micro_batches, "pp", pp, "[Meg] §3.2") for phase, what in boundary]

    def _entry(
        self, phase: Phase, op: Op, what: str, tensor_bytes: int, count: int, group: Group, ranks: int, source: str, fabric: Fabric | None = None
    ) -> Collective:
        cluster = self.job.cluster
        place: Fabric = fabric or ("node" if (self.tp if group == "tp" else cluster.gpus) <= cluster.gpus_per_node else "network")
        return collective(
            phase, op, what, dtype=self.job.recipe.compute, tensor_bytes=tensor_bytes, count=count, group=group, ranks=ranks,
            fabric=place, overlapped=False, source=source,
        )  # fmt: skip
