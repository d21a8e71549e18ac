"""Where collectives run: which of their bytes stay inside a node, which cross the network, and what the links carry a second."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.schedule import NETWORK_FABRICS, POINT_TO_POINT, Collective, Op
from zerocalc.spec.job import Job

NODE_LATENCY_SECONDS, NETWORK_LATENCY_SECONDS = 3.4e-6, 14e-6
"""One step of a ring over NVLink and over a network: NCCL's own model, protocol Simple (nccl, src/graph/tuning.cc: hwLat)."""
HOPS = f"{1e6 * NODE_LATENCY_SECONDS:g} µs inside a node and {1e6 * NETWORK_LATENCY_SECONDS:g} µs between nodes (NCCL's model of rings)"
STEPS: dict[Op, int] = {"all_reduce": 2}
"""Rounds of a ring, of one step less than it has ranks each: an all-reduce goes round twice."""


@record
class Placed:
    """Bytes that one GPU sends in all calls of a collective, by where they go, the members of its group in one node, and its calls."""

    collective: Collective
    members: int
    intra_node_bytes: int
    inter_node_bytes: int

    @property
    def hops(self) -> tuple[int, int]:
        """Steps of one call inside nodes, and between them: those of a ring, of which as many cross as there are nodes, less one."""
        entry = self.collective
        if entry.op in POINT_TO_POINT:
            return (0, 1) if self.inter_node_bytes else (1, 0)
        rounds = STEPS.get(entry.op, 1)
        across = ceil_div(entry.ranks, self.members) - 1
        return rounds * (entry.ranks - 1 - across), rounds * across


def placed(job: Job, entry: Collective) -> Placed:
    """A collective by where the members of its group are.

    A ring over several nodes leaves each of them once: of what a group sends, one part in so many as it has members in a node crosses.
    """
    if entry.fabric not in NETWORK_FABRICS:
        return Placed(entry, 1, 0, 0)
    members = max(1, min(entry.ranks, job.cluster.gpus_per_node // entry.spacing))
    if entry.op in POINT_TO_POINT and entry.group != "cp":  # those send along a ring
        crosses = entry.spacing >= job.cluster.gpus_per_node
        return Placed(entry, members, 0 if crosses else entry.sent_bytes, entry.sent_bytes if crosses else 0)
    if members >= entry.ranks:
        return Placed(entry, entry.ranks, entry.sent_bytes, 0)
    # A ring leaves a node once for each of its members; an all-to-all sends to each of the others as much.
    share = (entry.ranks - members, entry.ranks - 1) if entry.op == "all_to_all" else (1, members)
    across = entry.sent_bytes * share[0] // share[1]
    return Placed(entry, members, entry.sent_bytes - across, across)
