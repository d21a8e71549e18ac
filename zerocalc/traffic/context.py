"""Traffic of context parallelism: every token's query meets the keys and values of all."""

from __future__ import annotations

from zerocalc.formulas.formula import ceil_div
from zerocalc.model.architecture import Architecture, Modules
from zerocalc.schedule import Collective, Op, Phase, collective
from zerocalc.sharding.gather_units import pipeline_split
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES
from zerocalc.traffic.groups import link

SOURCES = {
    "ring": (
        "Ring Attention, arXiv 2310.01889 §3; Transformer Engine 2.11, "
        "attention/dot_product_attention/context_parallel.py (p2p)"
    ),
    "all_gather": "torch 2.13, distributed/tensor/experimental/_context_parallel/_attention.py",
    "all_to_all": "DeepSpeed-Ulysses, arXiv 2309.14509 §3.2",
}
Call = tuple[Phase, Op, str, int, int, bool]
"""When, by which operation, what, numbers a token, calls a layer, and whether computing hides it.
"""


def attends(arch: Architecture) -> bool:
    """Whether all layers bring tokens together by attention alone, so that what they send is
    known.
    """
    return all(any(m.attends[0] for m in modules) for _, modules in arch.groups)


def context_parallel(job: Job, arch: Architecture, tokens: int) -> list[Collective]:
    """What ``tokens`` tokens on each rank cost per layer and micro-batch; attention that is
    recomputed brings keys and values together once more.
    """
    parallel, dtype, how = job.parallel, job.recipe.compute, job.framework.context
    over = link(job, "cp", parallel.cp, SOURCES[how])
    sizes: dict[tuple[int, int], int] = {}
    for count, modules in arch.groups:
        for widths in _widths(modules, parallel.tp):
            sizes[widths] = sizes.get(widths, 0) + ceil_div(count, pipeline_split(job))
    training = job.training
    again = training.recompute == "full" or (
        training.recompute == "selective" and "core_attn" in training.recompute_modules
    )
    out = []
    for (query, pair), layers in sizes.items():
        for phase, op, what, width, calls, hidden in _calls(how, parallel.cp, query, pair, again):
            sent = (
                "fp32" if how == "all_gather" and op == "send_recv" else dtype
            )  # PyTorch adds gradients up in fp32
            size = tokens * width * DTYPE_BYTES[sent] * (parallel.cp if op == "all_gather" else 1)
            out.append(
                collective(
                    over,
                    phase,
                    op,
                    what,
                    sent,
                    size,
                    calls * layers * training.accumulation,
                    hidden,
                )
            )
    return out


def _widths(modules: Modules, tensor_parallel: int) -> list[tuple[int, int]]:
    """Numbers of a token's query and result, and of its key and value, on one tensor-parallel rank,
    for each attention of a layer.
    """
    return [
        (
            ceil_div(heads, tensor_parallel) * (key + value),
            ceil_div(kv_heads, tensor_parallel) * (key + value),
        )
        for heads, kv_heads, key, value in [module.attends for module in modules]
        if heads
    ]


def _calls(how: str, ranks: int, query: int, pair: int, again: bool) -> list[Call]:
    if how == "all_to_all":
        both = query + pair
        out: list[Call] = [
            ("forward", "all_to_all", "heads", both, 1, False),
            ("backward", "all_to_all", "gradients of heads", both, 1, False),
        ]
        return out + (
            [("backward", "all_to_all", "recomputed heads", both, 1, False)] if again else []
        )
    ring = how == "ring"
    op: Op = "send_recv" if ring else "all_gather"
    calls = ranks - 1 if ring else 1
    passes: list[tuple[Phase, str]] = [
        ("forward", "keys and values"),
        ("backward", "keys and values"),
    ]
    if again:
        passes.append(("backward", "recomputed keys and values"))
    out = [(phase, op, what, pair, calls, ring) for phase, what in passes]
    return [
        *out,
        (
            "backward",
            "send_recv",
            "gradients of keys and values",
            pair,
            ranks - 1 if ring else ranks,
            ring,
        ),
    ]
