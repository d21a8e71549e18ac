"""Traffic of tensor and pipeline parallelism, and of partitioned activations ([ZeRO] §8, [SP]
§4.2).
"""

from __future__ import annotations

from zerocalc import sharding, traffic
from zerocalc.formulas.formula import ceil_div
from zerocalc.model.architecture import Architecture
from zerocalc.model.module import SHARED
from zerocalc.schedule import CPU_TRAFFIC, Collective, Link, Op, Phase, collective
from zerocalc.sharding.gather_units import pipeline_split
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import link

BOUNDARY: tuple[tuple[Phase, str], ...] = (
    ("forward", "activations to the next stage"),
    ("backward", "gradients to the previous stage"),
)
PARTITIONED_SOURCE = "[ZeRO] §8"
OFFLOADED_SOURCE = "[Inf] §5.2.3"
TENSOR_PARALLEL_SOURCE = "[ZeRO] §8; [SP] §4.2.2"
TIED_SOURCE = "[Meg]'s code: megatron-core 0.16.1, distributed/finalize_model_grads.py"
SYNCS_PER_PASS = 2
"""[ZeRO] §8: one all-reduce after attention and one after the MLP in forward, the same in backward,
and in a recomputed forward.
"""


def model_parallel(job: Job, rank: Rank) -> list[Collective]:
    """What tensor- and pipeline-parallel ranks send, and what P_a adds; nothing while the sequence
    length is unknown.
    """
    if rank.arch is None or not rank.arch.saves:
        return []
    parallel = job.parallel
    if (
        parallel.tp == parallel.pp == parallel.cp == parallel.ep == 1
        and not job.zero.checkpoints_on_host
    ):
        return []  # P_a needs tensor parallelism too
    stages, streams = pipeline_split(job), rank.arch.streams
    calls = _Calls(
        job,
        rank.tokens * rank.arch.hidden,
        ceil_div(rank.arch.layers, stages),
        _routed(rank.arch, stages),
        streams,
    )
    out = (
        calls.tensor_parallel(rank.arch)
        + calls.partitioned_activations()
        + calls.checkpoints_moved()
    )
    out += calls.pipeline_parallel() + calls.tied_embedding(rank.whole)
    if parallel.tp > 1:
        out += traffic.vocab_parallel.ends(job, rank)
    if parallel.cp > 1:
        out += traffic.context.context_parallel(job, rank.arch, rank.tokens)
    if job.experts_apart:
        out += traffic.experts.expert_parallel(job, rank.arch, rank.tokens)
    return out


def _routed(arch: Architecture, stages: int) -> int:
    """Layers whose MLP is routed experts alone."""
    alone = [
        count
        for count, modules in arch.groups
        if any(m.experts > 1 for m in modules) and all(m.name != SHARED for m in modules)
    ]
    return ceil_div(sum(alone), stages)


def unknown_traffic(job: Job, rank: Rank) -> tuple[str, ...]:
    """What is sent and not in the schedule: all that depends on activations while those are
    unknown, and what context-parallel ranks send.
    """
    parallel = job.parallel
    if (
        parallel.tp == parallel.pp == parallel.cp == parallel.ep == 1
        and not job.zero.checkpoints_on_host
    ):
        return ()
    known = rank.arch is not None and rank.arch.saves
    missing = {
        "tensor-parallel traffic": parallel.tp > 1 and not known,
        "pipeline-parallel traffic": parallel.pp > 1 and not known,
        "context-parallel traffic": parallel.cp > 1 and not (known and _attends(rank)),
        "expert-parallel traffic": job.experts_apart and not known,
        CPU_TRAFFIC: job.zero.checkpoints_on_host and not known,
    }
    return tuple([name for name, is_missing in missing.items() if is_missing])


def _attends(rank: Rank) -> bool:
    return rank.arch is not None and traffic.context.attends(rank.arch)


class _Calls:
    def __init__(self, job: Job, elements: int, layers: int, routed: int, streams: int) -> None:
        self.job = job
        self.micro_batches = job.training.accumulation
        self.layer_calls = layers * self.micro_batches
        self.gathered_again = (SYNCS_PER_PASS * layers - routed) * self.micro_batches
        self.dtype = job.recipe.compute
        self.tensor_bytes = elements * DTYPE_BYTES[self.dtype]
        self.boundary_bytes = self.tensor_bytes * streams
        self.tp = job.parallel.tp

    def tensor_parallel(self, arch: Architecture) -> list[Collective]:
        """All-reduces after attention and after the MLP; experts on ranks of their own are none of
        the latter.
        """
        if self.tp == 1:
            return []
        ops: tuple[Op, ...] = (
            ("all_gather", "reduce_scatter")
            if self.job.parallel.sequence_parallel
            else ("all_reduce",)
        )
        passes: list[tuple[Phase, str]] = [
            ("forward", "activations"),
            ("backward", "activation gradients"),
        ]
        if self.job.training.recompute == "full":
            passes.append(("backward", "recomputed activations"))
        over = link(self.job, "tp", self.tp, TENSOR_PARALLEL_SOURCE)
        count = SYNCS_PER_PASS * self.layer_calls
        if self.job.experts_apart:
            routed = sharding.experts.moe_layers(arch)
            count -= self.micro_batches * sum([layers for layers, _ in routed])
        out = [
            collective(over, phase, op, what, self.dtype, self.tensor_bytes, count)
            for phase, what in passes
            for op in ops
        ]
        if (
            self.job.parallel.sequence_parallel
            and self.job.implementation.sequence_input == "gathered_again"
        ):
            # Only a rank's part of the inputs of attention and MLP is kept, so that backward
            # gathers them once more; routed experts keep theirs.
            again = self.gathered_again
            out.append(
                collective(
                    over,
                    "backward",
                    "all_gather",
                    "saved inputs",
                    self.dtype,
                    self.tensor_bytes,
                    again,
                    overlapped=True,
                )
            )
        return out

    def partitioned_activations(self) -> list[Collective]:
        zero = self.job.zero
        if not zero.partition_activations:
            return []
        over = link(self.job, "tp", self.tp, PARTITIONED_SOURCE)
        return [
            collective(
                over,
                "backward",
                "all_gather",
                "checkpoints",
                self.dtype,
                self.boundary_bytes,
                self.layer_calls,
            )
        ]

    def checkpoints_moved(self) -> list[Collective]:
        """Copies of what full recomputation stores, to the host in forward and back in backward."""
        zero = self.job.zero
        if not zero.checkpoints_on_host:
            return []
        split = zero.partition_activations or self.job.parallel.sequence_parallel
        part = ceil_div(self.boundary_bytes, self.tp) if split else self.boundary_bytes
        host = Link(
            "host",
            1,
            "pcie",
            PARTITIONED_SOURCE if zero.partition_activations else OFFLOADED_SOURCE,
        )
        return [
            collective(
                host,
                "forward",
                "copy",
                "checkpoints to the CPU",
                self.dtype,
                part,
                self.layer_calls,
            ),
            collective(
                host,
                "backward",
                "copy",
                "checkpoints from the CPU",
                self.dtype,
                part,
                self.layer_calls,
            ),
        ]

    def pipeline_parallel(self) -> list[Collective]:
        """What goes to the next stage and back: of the model's last chunk of layers nothing goes
        on, of its first nothing back.
        """
        parallel = self.job.parallel
        if parallel.pp == 1:
            return []
        part = ceil_div(self.boundary_bytes, self.tp if parallel.sequence_parallel else 1)
        over = link(self.job, "pp", parallel.pp, "[Meg] §3.2")
        ends: dict[Phase, int] = {"forward": parallel.pp, "backward": 1}
        out = []
        for phase, what in BOUNDARY:
            count = self.micro_batches * (
                parallel.interleave - (parallel.pipeline_stage == ends[phase])
            )
            if count:
                out.append(collective(over, phase, "send_recv", what, self.dtype, part, count))
        return out

    def tied_embedding(self, whole: Architecture | None) -> list[Collective]:
        """The first and the last stage have a copy of a tied embedding each, whose gradients they
        add up.
        """
        parallel = self.job.parallel
        if (
            whole is None
            or not whole.tied
            or parallel.pp == 1
            or parallel.pipeline_stage not in (1, parallel.pp)
        ):
            return []
        dtype = self.job.reduce_dtype
        size = ceil_div(whole.vocab, parallel.tp) * whole.hidden * DTYPE_BYTES[dtype]
        over = link(self.job, "pp", 2, TIED_SOURCE, apart=parallel.pp - 1)
        return [
            collective(over, "backward", "all_reduce", "tied embedding's gradients", dtype, size, 1)
        ]
