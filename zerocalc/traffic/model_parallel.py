"""Traffic of tensor and pipeline parallelism, and of partitioned activations ([ZeRO] §8, [SP] §4.2)."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.modules.rank import Rank
from zerocalc.modules.units import pipeline_split
from zerocalc.schedule import HOST_TRAFFIC, Collective, Fabric, Link, Op, Phase, collective
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

BOUNDARY: tuple[tuple[Phase, str], ...] = (("forward", "activations to the next stage"), ("backward", "gradients to the stage before"))
PARTITIONED_SOURCE = "[ZeRO] §8"
OFFLOADED_SOURCE = "[Inf] §5.2.3"
TENSOR_PARALLEL_SOURCE = "[ZeRO] §8; [SP] §4.2.2"
SYNCS_PER_PASS = 2
"""[ZeRO] §8: one all-reduce after attention and one after the MLP in forward, the same in backward, and in a recomputed forward."""


def model_parallel(job: Job, rank: Rank) -> list[Collective]:
    """What tensor- and pipeline-parallel ranks send, and what P_a adds; nothing while the sequence length is unknown."""
    if rank.arch is None or not rank.arch.saves:
        return []
    parallel = job.parallel
    if parallel.tp == parallel.pp == 1 and not job.zero.checkpoints_on_host:
        return []  # P_a needs tensor parallelism too
    calls = _Calls(job, rank.tokens * rank.arch.hidden, ceil_div(rank.arch.layers, pipeline_split(job)))
    return calls.tensor_parallel() + calls.partitioned_activations() + calls.checkpoints_moved() + calls.pipeline_parallel()


def unknown_traffic(job: Job, rank: Rank) -> tuple[str, ...]:
    """What is sent and not in the schedule: all that depends on activations while those are unknown, and what context-parallel ranks send."""
    parallel = job.parallel
    if job.model_parallel == 1 and not job.zero.checkpoints_on_host:
        return ()
    known = rank.arch is not None and rank.arch.saves
    missing = {
        "tensor-parallel traffic": parallel.tp > 1 and not known,
        "pipeline-parallel traffic": parallel.pp > 1 and not known,
        "context-parallel traffic": parallel.cp > 1,
        HOST_TRAFFIC: job.zero.checkpoints_on_host and not known,
    }
    return tuple([name for name, is_missing in missing.items() if is_missing])


class _Calls:
    def __init__(self, job: Job, elements: int, layers: int) -> None:
        self.job = job
        self.micro_batches = job.training.accumulation
        self.layer_calls = layers * self.micro_batches
        self.dtype = job.recipe.compute
        self.tensor_bytes = elements * DTYPE_BYTES[self.dtype]
        self.tp = job.parallel.tp

    def tensor_parallel(self) -> list[Collective]:
        if self.tp == 1:
            return []
        ops: tuple[Op, ...] = ("all_gather", "reduce_scatter") if self.job.parallel.sequence_parallel else ("all_reduce",)
        passes: list[tuple[Phase, str]] = [("forward", "activations"), ("backward", "activation gradients")]
        if self.job.training.recompute == "full":
            passes.append(("backward", "recomputed activations"))
        link = Link("tp", self.tp, self._fabric(self.tp), TENSOR_PARALLEL_SOURCE)
        count = SYNCS_PER_PASS * self.layer_calls
        out = [collective(link, phase, op, what, self.dtype, self.tensor_bytes, count) for phase, what in passes for op in ops]
        if self.job.parallel.sequence_parallel:
            # Only a rank's part of the inputs of attention and MLP is kept, so that backward gathers them once more.
            out.append(collective(link, "backward", "all_gather", "saved inputs", self.dtype, self.tensor_bytes, count, overlapped=True))
        return out

    def partitioned_activations(self) -> list[Collective]:
        zero = self.job.zero
        if not zero.partition_activations:
            return []
        link = Link("tp", self.tp, self._fabric(self.tp), PARTITIONED_SOURCE)
        return [collective(link, "backward", "all_gather", "checkpoints", self.dtype, self.tensor_bytes, self.layer_calls)]

    def checkpoints_moved(self) -> list[Collective]:
        """Copies of what full recomputation stores, to the host in forward and back in backward."""
        zero = self.job.zero
        if not zero.checkpoints_on_host:
            return []
        split = zero.partition_activations or self.job.parallel.sequence_parallel
        part = ceil_div(self.tensor_bytes, self.tp) if split else self.tensor_bytes
        host = Link("host", 1, "pcie", PARTITIONED_SOURCE if zero.partition_activations else OFFLOADED_SOURCE)
        return [
            collective(host, "forward", "copy", "checkpoints to the host", self.dtype, part, self.layer_calls),
            collective(host, "backward", "copy", "checkpoints from the host", self.dtype, part, self.layer_calls),
        ]

    def pipeline_parallel(self) -> list[Collective]:
        pp = self.job.parallel.pp
        if pp == 1:
            return []
        part = ceil_div(self.tensor_bytes, self.tp if self.job.parallel.sequence_parallel else 1)
        link = Link("pp", pp, self._fabric(self.job.cluster.gpus), "[Meg] §3.2")
        count = self.micro_batches * self.job.parallel.interleave
        return [collective(link, phase, "send_recv", what, self.dtype, part, count) for phase, what in BOUNDARY]

    def _fabric(self, gpus: int) -> Fabric:
        """What joins neighbouring GPUs, so many of them."""
        return "node" if gpus <= self.job.cluster.gpus_per_node else "network"
