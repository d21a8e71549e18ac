"""Traffic of expert parallelism: tokens to the ranks of their experts, and results back."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.model.architecture import Architecture
from zerocalc.schedule import Collective, Op, Phase, collective
from zerocalc.sharding.experts import moe_layers
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import link

SOURCE = "GShard, arXiv 2006.16668 §3.2; megatron-core, transformer/moe/token_dispatcher.py"
GATHERED_AND_SUMMED: tuple[Op, ...] = ("all_gather", "reduce_scatter")


def expert_parallel(job: Job, arch: Architecture, tokens: int) -> list[Collective]:
    """Two all-to-alls of each layer's routed tokens in forward, as many in backward and in a
    recomputed forward.

    With experts divided over etp ranks, those gather what any of them received, and sum up and
    divide what comes out.
    """
    ep, etp, dtype = job.parallel.ep, job.expert_tensor_parallel, job.recipe.compute
    own = ceil_div(tokens, job.parallel.tp if job.parallel.sequence_parallel else 1)
    passes: list[tuple[Phase, str]] = [
        ("forward", "routed tokens"),
        ("backward", "gradients of routed tokens"),
    ]
    if job.training.recompute == "full":
        passes.append(("backward", "recomputed routed tokens"))
    out = []
    for layers, top_k in moe_layers(arch):
        size, calls = (
            top_k * own * arch.hidden * DTYPE_BYTES[dtype],
            layers * job.training.accumulation,
        )
        if ep > 1:
            over = link(job, "ep", ep, SOURCE)
            out += [
                collective(over, phase, "all_to_all", what, dtype, size, 2 * calls)
                for phase, what in passes
            ]
        if etp > 1:
            inner = link(job, "etp", etp, SOURCE)
            out += [
                collective(inner, phase, op, what, dtype, etp * size, calls)
                for phase, what in passes
                for op in GATHERED_AND_SUMMED
            ]
    return out
