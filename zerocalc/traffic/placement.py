"""Where collectives run: which of their bytes stay inside a node, which cross the network, and what the links carry a second."""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.schedule import NETWORK_FABRICS, POINT_TO_POINT, Collective
from zerocalc.spec.job import Job

NODE_LATENCY_SECONDS, NETWORK_LATENCY_SECONDS = 3.4e-6, 14e-6
"""One step of a ring over NVLink and over a network: NCCL's own model, protocol Simple (nccl, src/graph/tuning.cc: hwLat)."""


@record
class Placed:
    """Bytes that one GPU sends in all calls of a collective, by where they go, the members of its group in one node, and its calls."""

    collective: Collective
    members: int
    intra_node_bytes: int
    inter_node_bytes: int


def placed(job: Job, entry: Collective) -> Placed:
    """A collective by the order of ranks: tensor-parallel ones innermost, then context-, data- and pipeline-parallel ones.

    Of those that share experts the ranks that divide one lie innermost, then those that hold others, then those that hold the same ones.
    A ring over several nodes leaves each of them once: of what a group sends, one part in so many as it has members in a node crosses.
    """
    if entry.fabric not in NETWORK_FABRICS:
        return Placed(entry, 1, 0, 0)
    members = _members(job, entry)
    if entry.op in POINT_TO_POINT and entry.group != "cp":  # those send along a ring
        crosses = _spacing(job, entry) >= job.cluster.gpus_per_node
        return Placed(entry, members, 0 if crosses else entry.sent_bytes, entry.sent_bytes if crosses else 0)
    if members >= entry.ranks:
        return Placed(entry, entry.ranks, entry.sent_bytes, 0)
    across = entry.sent_bytes // members
    return Placed(entry, members, entry.sent_bytes - across, across)


def _members(job: Job, entry: Collective) -> int:
    """Ranks of a group in one node."""
    return max(1, min(entry.ranks, job.cluster.gpus_per_node // _spacing(job, entry)))


def _spacing(job: Job, entry: Collective) -> int:
    """GPUs from one member of a group to the next."""
    p = job.parallel
    if entry.group == "tp":
        return 1
    if entry.group == "cp":
        return p.tp
    if entry.group in ("ep", "etp", "edp"):
        etp = job.expert_tensor_parallel
        return {"etp": 1, "ep": etp, "edp": etp * p.ep}[entry.group]
    if entry.group == "pp":
        return p.tp * p.cp * job.dp * (p.pp - 1 if entry.op == "all_reduce" else 1)  # the first and the last stage
    return p.tp if entry.ranks == job.shards else p.tp * job.shards  # the copies of shards lie further apart
