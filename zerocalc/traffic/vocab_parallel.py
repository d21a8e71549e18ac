"""What tensor-parallel ranks send of what stands before and after the layers: embedding, head and
loss, each divided by the vocabulary.
"""

from __future__ import annotations

from zerocalc.schedule import Collective, Op, Phase, collective
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import link

SOURCE = "[SP] §4.2.2; megatron-core 0.16.1, tensor_parallel/layers.py and cross_entropy.py"
LOSS_SUMS = 3
"""The largest logit, the target's logit and the sum of exponentials: one number a token each."""
Call = tuple[Phase, Op, str]

EMBEDDING: tuple[Call, ...] = (("forward", "all_reduce", "embedding's output"),)
HEAD: tuple[Call, ...] = (("backward", "all_reduce", "gradients of the head's input"),)
EMBEDDING_IN_PARTS: tuple[Call, ...] = (
    ("forward", "reduce_scatter", "embedding's output"),
    ("backward", "all_gather", "gradients of the embedding's output"),
)
HEAD_IN_PARTS: tuple[Call, ...] = (
    ("forward", "all_gather", "head's input"),
    ("backward", "all_gather", "head's saved input"),
    ("backward", "reduce_scatter", "gradients of the head's input"),
)
"""Under sequence parallelism: every rank has its part of the tokens between them."""


def ends(job: Job, rank: Rank) -> list[Collective]:
    """What the embedding, the head and the loss send, on the pipeline stages that have them."""
    arch, parallel, dtype = rank.arch, job.parallel, job.recipe.compute
    if arch is None:
        return []
    over = link(job, "tp", parallel.tp, SOURCE)
    times, parts = job.training.accumulation, parallel.sequence_parallel
    calls = ((EMBEDDING_IN_PARTS if parts else EMBEDDING) if arch.before else ()) + (
        (HEAD_IN_PARTS if parts else HEAD) if arch.after else ()
    )
    size = rank.tokens * arch.hidden * DTYPE_BYTES[dtype]
    out = [collective(over, phase, op, what, dtype, size, times) for phase, op, what in calls]
    if arch.after:
        out.append(
            collective(
                over,
                "forward",
                "all_reduce",
                "sums of the loss",
                "fp32",
                rank.tokens * DTYPE_BYTES["fp32"],
                LOSS_SUMS * times,
            )
        )
    return out
