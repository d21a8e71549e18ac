"""Who sends to whom: groups of ranks by the order in which GPUs are numbered, and what joins
them.
"""

from __future__ import annotations

from zerocalc.schedule import Group, Link
from zerocalc.spec.job import Job

PACKED = 2
"""Numbers of 4 bits in a byte."""


def link(job: Job, group: Group, ranks: int, source: str, *, apart: int = 1) -> Link:
    """A group of ``ranks``, each ``apart`` ranks of its kind from the next.

    GPUs are numbered as frameworks do it: tensor-parallel ranks innermost, then context-, data- and
    pipeline-parallel ones ([Meg] §3.5; megatron-core, parallel_state.py: tp-cp-ep-dp-pp). Those
    that share shards are context- and data-parallel ranks together. Of those that share experts the
    ranks that divide one lie innermost, then those that hold others, then those that hold the same
    ones.
    """
    p = job.parallel
    etp = job.expert_tensor_parallel
    steps = {
        "tp": 1,
        "dp": p.tp,
        "cp": p.tp,
        "pp": p.tp * p.cp * job.dp,
        "host": 1,
        "etp": 1,
        "ep": etp,
        "edp": etp * p.ep,
    }
    between = steps[group] * apart
    return Link(
        group,
        ranks,
        "node" if ranks * between <= job.cluster.gpus_per_node else "network",
        source,
        between,
    )


def hops(job: Job, ranks: int) -> tuple[tuple[int, int, int], ...]:
    """The two hops of a reduction that quantises between them: (ranks, how far apart, the part of
    the whole that is handled), [++] §3.3.

    First among the ranks of a node, then between nodes, each rank with those that hold the same
    share.
    """
    near = job.cluster.gpus_per_node
    return (near, 1, 1), (ranks // near, near, near)
