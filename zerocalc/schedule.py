"""Collectives and the schedule of them: what is sent, when, by which operation, in one optimizer
step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

from zerocalc.formulas.collectives import all_reduce_sent, copy_sent, ring_sent
from zerocalc.formulas.formula import Formula
from zerocalc.ledger import record

Phase = Literal["forward", "backward", "step"]
Op = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
    "copy",
]
Group = Literal["dp", "tp", "pp", "cp", "ep", "etp", "edp", "host"]
"""Ranks that send each other something: data-, tensor-, pipeline-, context- and expert-parallel
ones; those that divide an expert, and those that hold the same experts.
"""
Fabric = Literal["node", "network", "pcie", "nvme"]
AnyFormula: TypeAlias = Formula[Any]


@record
class Operation:
    """What one operation sends, and to whom.

    ``volume``: how often it moves its tensor as the ranks grow without bound ([ZeRO] §7.1), which
    is how often a ring goes round. ``path``: round a ring, as much to each of the other ranks, or
    from one rank to another (``pair``). ``sent``: the bytes that one rank sends.
    """

    name: Op
    volume: int
    path: Literal["ring", "all_to_all", "pair"]
    sent: AnyFormula


_BY_NAME = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", 2, "ring", all_reduce_sent),
        Operation("all_gather", 1, "ring", ring_sent),
        Operation("reduce_scatter", 1, "ring", ring_sent),
        Operation("broadcast", 1, "ring", ring_sent),
        Operation("reduce", 1, "ring", ring_sent),
        Operation("all_to_all", 1, "all_to_all", ring_sent),
        Operation("send_recv", 1, "pair", copy_sent),
        Operation("copy", 1, "pair", copy_sent),
    )
}
OPERATIONS: dict[Op, Operation] = {op: _BY_NAME[op] for op in get_args(Op)}
"""The record of each `Op`: an op without one fails here, at import."""

NETWORK_FABRICS = frozenset({"node", "network"})
CPU_TRAFFIC, NVME_TRAFFIC = "CPU-GPU traffic", "NVMe traffic"
"""What an answer calls copies between CPU and GPU, also where they are unknown, and between CPU and
NVMe; other unknown traffic is the network's.
"""


@record
class Collective:
    """Calls of one operation in one phase. ``tensor_bytes`` is what one call handles (the gathered
    size, a reduce-scatter's input); ``sent_bytes`` what one rank sends in all ``count`` calls.
    ``spacing``: GPUs, in the order of ranks, from one member of the group to the next.
    """

    moment: Phase
    op: Op
    what: str
    dtype: str
    tensor_bytes: int
    count: int
    group: Group
    ranks: int
    fabric: Fabric
    sent_bytes: int
    overlapped: bool
    formula: AnyFormula
    inputs: dict[str, int | float]
    source: str
    spacing: int


@record
class Placement:
    """Where one GPU's bytes of a collective go [bytes]: to others of its node, of which ``members``
    belong to the group, or over the network.

    ``hierarchical_bytes``: what would cross the network if the members of a node first reduced, or
    last gathered, among themselves.
    """

    members: int
    intra_node_bytes: int
    inter_node_bytes: int
    hierarchical_bytes: int


@record
class Link:
    """Who takes part in collectives and over what: the same for many of them."""

    group: Group
    ranks: int
    fabric: Fabric
    source: str
    spacing: int = 1


def collective(
    link: Link,
    moment: Phase,
    op: Op,
    what: str,
    dtype: str,
    tensor_bytes: int,
    count: int,
    overlapped: bool = False,
) -> Collective:
    """A collective whose ``sent_bytes`` follow from its operation."""
    operation = OPERATIONS[op]
    inputs: dict[str, int | float] = {"tensor_bytes": tensor_bytes, "count": count}
    if operation.path != "pair":
        inputs = {"ranks": link.ranks, **inputs}
    return Collective(
        moment,
        op,
        what,
        dtype,
        tensor_bytes,
        count,
        link.group,
        link.ranks,
        link.fabric,
        operation.sent.function(**inputs),
        overlapped,
        operation.sent,
        inputs,
        link.source,
        link.spacing,
    )


@record
class Schedule:
    """The collectives of one optimizer step on one rank, in order, and the element size of each
    dtype in them.
    """

    collectives: tuple[Collective, ...]

    def sent(self, fabrics: frozenset[str]) -> int:
        """Bytes that one rank sends over some fabrics."""
        return sum([c.sent_bytes for c in self.collectives if c.fabric in fabrics])

    def volume_elements(self, dtype_bytes: dict[str, int]) -> int:
        """Data-parallel elements per rank and step as the ranks grow without bound: [ZeRO]'s
        convention (§7).

        ``dtype_bytes``: of one element; for a quantised dtype, of the element that it stands for
        ([++] counts so: int8 for 16 bits is half).
        """
        return sum(
            [
                OPERATIONS[c.op].volume * c.tensor_bytes * c.count // dtype_bytes[c.dtype]
                for c in self.collectives
                if c.group in ("dp", "edp")
            ]
        )


def merge(parts: Iterable[Iterable[Collective]]) -> Schedule:
    """One schedule out of several lists of collectives, ordered by phase."""
    by_phase: dict[Phase, list[Collective]] = {"forward": [], "backward": [], "step": []}
    for part in parts:
        for entry in part:
            by_phase[entry.moment].append(entry)
    return Schedule((*by_phase["forward"], *by_phase["backward"], *by_phase["step"]))
