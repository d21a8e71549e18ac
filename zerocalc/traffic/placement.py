"""Where collectives run: which of their bytes stay inside a node, which cross the network, and what
the links carry a second.
"""

from __future__ import annotations

from zerocalc.formulas.collectives import hierarchical_sent
from zerocalc.formulas.formula import ceil_div
from zerocalc.schedule import NETWORK_FABRICS, OPERATIONS, Collective, Placement
from zerocalc.spec.job import Job

NODE_LATENCY_SECONDS, NETWORK_LATENCY_SECONDS = 3.4e-6, 14e-6
"""One step of a ring over NVLink and over a network: NCCL's own model, protocol Simple (nccl,
src/graph/tuning.cc: hwLat).
"""
RING_LATENCY = (
    f"{1e6 * NODE_LATENCY_SECONDS:g} µs latency per ring step inside a node, "
    f"{1e6 * NETWORK_LATENCY_SECONDS:g} µs between nodes (NCCL's ring model)"
)


def hops(entry: Collective, where: Placement) -> tuple[int, int]:
    """Steps of one call inside nodes, and between them: those of a ring, of which as many cross as
    there are nodes, less one.
    """
    operation = OPERATIONS[entry.op]
    if operation.path == "pair":
        return (0, 1) if where.inter_node_bytes else (1, 0)
    rounds = operation.volume
    across = ceil_div(entry.ranks, where.members) - 1
    return rounds * (entry.ranks - 1 - across), rounds * across


def placed(job: Job, entry: Collective) -> Placement:
    """Where a collective's bytes go, by where the members of its group are.

    A ring over several nodes leaves each of them once: of what a group sends, one part in so many
    as it has members in a node crosses.
    """
    if entry.fabric not in NETWORK_FABRICS:
        return Placement(1, 0, 0, 0)
    sent = entry.sent_bytes
    members = max(1, min(entry.ranks, job.cluster.gpus_per_node // entry.spacing))
    operation = OPERATIONS[entry.op]
    if operation.path == "pair" and entry.group != "cp":  # those send along a ring
        crosses = entry.spacing >= job.cluster.gpus_per_node
        return Placement(members, 0, sent, sent) if crosses else Placement(members, sent, 0, 0)
    if members >= entry.ranks:
        return Placement(entry.ranks, sent, 0, 0)
    if operation.path == "all_to_all":  # as much to each of the others
        across = sent * (entry.ranks - members) // (entry.ranks - 1)
        return Placement(members, sent - across, across, across)
    across = sent // members  # a ring leaves a node once for each of its members
    if operation.path == "pair":
        return Placement(members, sent - across, across, across)
    least = hierarchical_sent.function(
        rounds=operation.volume,
        nodes=ceil_div(entry.ranks, members),
        members=members,
        tensor_bytes=entry.tensor_bytes,
        count=entry.count,
    )
    return Placement(members, sent - across, across, min(across, least))
