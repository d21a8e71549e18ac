"""Mixture of experts: routed experts, their router, and experts that every token passes through."""

from __future__ import annotations

from typing import Literal

from zerocalc.modules.base import Module, ParameterRow, linear
from zerocalc.modules.mlp import matrices

ExpertLayout = Literal["fused", "transposed", "each"]


def moe(
    *, hidden: int, experts: int, top_k: int, ffn: int, gated: bool = True, bias: bool = False, layout: ExpertLayout = "fused",
    router: bool = True, router_bias: bool = False, correction_bias: bool = False,
    shared_ffn: int = 0, shared_bias: bool = False, shared_gate: bool = False,
) -> list[Module]:  # fmt: skip
    """A layer of ``experts`` of which a token passes through ``top_k``.

    ``layout``: all experts in one tensor, ``fused`` (experts, out, in) or ``transposed`` (experts, in, out), or ``each`` in its own.
    ``correction_bias``: a learned score an expert (DeepSeek-V3, arXiv 2412.19437 §2.1.2). ``shared_ffn``: the width of the shared experts together.
    """
    modules = [Module("experts", "experts", _experts(hidden, experts, ffn, gated, bias, layout), (), top_k, experts, layout == "transposed")]
    gate = linear("router", experts, hidden, bias=router_bias) if router else ()
    if correction_bias:
        gate += (("router.correction_bias", (experts,), False),)
    if gate:
        modules.append(Module("router", "experts", gate))
    if shared_ffn:
        shared = matrices(hidden=hidden, ffn=shared_ffn, gated=gated, bias=shared_bias)
        modules.append(Module("shared experts", "experts", shared + (linear("shared_gate", 1, hidden) if shared_gate else ())))
    return modules


def _experts(hidden: int, experts: int, ffn: int, gated: bool, bias: bool, layout: ExpertLayout) -> tuple[ParameterRow, ...]:
    if layout == "each":
        one = matrices(hidden=hidden, ffn=ffn, gated=gated, bias=bias)
        return tuple((f"experts.{i}.{name}", shape, linear_weight) for i in range(experts) for name, shape, linear_weight in one)
    rows: list[ParameterRow] = []
    for name, out, inner in (("up", 2 * ffn if gated else ffn, hidden), ("down", hidden, ffn)):
        rows.append((f"experts.{name}", (experts, inner, out) if layout == "transposed" else (experts, out, inner), True))
        if bias:
            rows.append((f"experts.{name}_bias", (experts, out), False))
    return tuple(rows)
