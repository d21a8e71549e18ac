"""Mixture of experts: routed experts, their router, and experts that every token passes through."""

from __future__ import annotations

from typing import Any, Literal, get_args

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, NORMS, PRECISIONS, Kind
from zerocalc.model.kinds.mlp import Mlp, activate, facts, feed, gate_up, matrices
from zerocalc.model.module import (
    SHARED,
    Module,
    ParameterRow,
    SavedRow,
    linear,
    replicated,
    tensor,
)
from zerocalc.model.trace import FULL, MASK, Tape, Value

ExpertLayout = Literal["fused", "transposed", "each", "stacked"]
Precision = Literal["fp32", "compute"]
Routing = Literal["softmax", "sigmoid", "chosen"]
INDEX = "int64"


@record
class Moe:
    """The values of a layer of ``experts``, of which a token passes through ``top_k``."""

    hidden: int
    experts: int
    top_k: int
    ffn: int
    gated: bool = True
    bias: bool = False
    layout: ExpertLayout = "fused"
    """All experts in one tensor, ``fused`` (experts, out, in) or ``transposed`` (experts, in, out),
    or ``each`` in its own, or ``stacked``: three matrices of (experts times ffn, hidden) for gate,
    up and down.
    """
    activation: str = "silu"
    one_by_one: bool = False
    """The class runs one expert after the other."""
    dense: bool = False
    """Every token goes through every expert, weighed before it (Llama 4)."""

    router: bool = True
    """It has a router; without one, a module of its own has chosen."""
    router_bias: bool = False
    correction_bias: bool = False
    """A learned score an expert (DeepSeek-V3, arXiv 2412.19437 §2.1.2)."""
    router_input: Precision = "compute"
    """The dtype to which the class casts the router's input, and of its weight where it copies
    that (``router_copy``).
    """
    router_copy: bool = False
    routing: Routing = "softmax"
    """Probabilities are a softmax or sigmoid over all experts, or a softmax over the chosen."""
    probabilities: Precision = "fp32"
    """The dtype of that softmax."""
    group_limited: bool = False
    """Probabilities of experts outside the best groups are masked before the choice."""
    normalised: bool = False
    """The weights of the chosen experts are divided by their sum."""
    scores: Precision = "fp32"
    """The dtype of what weighs their results."""
    jitters: int = 0
    """How often the tokens are multiplied by noise first."""

    shared_ffn: int = 0
    """The width of the shared experts together."""
    shared_bias: bool = False
    shared_gate: bool = False
    residual_dropout: bool = False


def moe(step: Any, saved: tuple[SavedRow, ...]) -> list[Module]:
    """The router, the routed experts and the shared ones."""
    m: Moe = step.fields
    modules: list[Module] = []
    gate: tuple[ParameterRow, ...] = ()
    if m.router:
        gate = linear("router", m.experts, m.hidden, bias=m.router_bias, split="none")
    if m.correction_bias:
        gate += (replicated("router.correction_bias", m.experts),)
    if gate:
        modules.append(Module("router", "experts", gate))
    turned = m.layout == "transposed"
    routed = Module("experts", "experts", _experts(m), saved, m.top_k, m.experts, turned)
    modules.append(routed)
    if m.shared_ffn:
        mlp = Mlp(m.hidden, m.shared_ffn, m.gated, bias=m.shared_bias)
        rows = matrices(mlp) + (linear("shared_gate", 1, m.hidden) if m.shared_gate else ())
        modules.append(Module(SHARED, "experts", rows, **facts(mlp)))
    return modules


def _experts(m: Moe) -> tuple[ParameterRow, ...]:
    hidden, experts, ffn = m.hidden, m.experts, m.ffn
    if m.layout == "each":
        one = matrices(Mlp(hidden, ffn, m.gated, bias=m.bias))
        return tuple(
            [row._replace(name=f"experts.{i}.{row.name}") for i in range(experts) for row in one]
        )
    if m.layout == "stacked":
        shape = (experts * ffn, hidden)
        return tuple(
            [ParameterRow(f"experts.{name}", shape, True) for name in ("gate", "up", "down")]
        )
    turned, width = m.layout == "transposed", 2 * ffn if m.gated else ffn
    up = (experts, hidden, width) if turned else (experts, width, hidden)
    down = (experts, ffn, hidden) if turned else (experts, hidden, ffn)
    rows = [ParameterRow("experts.up", up, True), ParameterRow("experts.down", down, True)]
    if m.bias:
        rows.insert(1, tensor("experts.up_bias", experts, width))
        rows.append(replicated("experts.down_bias", experts, hidden))
    return tuple(rows)


def route(tape: Tape, x: Value, m: Moe) -> Value:
    """The forward pass of routed experts.

    Grouped, the tokens of all experts are in one tensor; one after the other, each expert keeps its
    tokens, and their results once more. Experts on ranks of their own see as many tokens as there
    are on a rank, each expert as many as another: ranks send each other theirs. Where each rank
    enters with its share of a sequence it routes that alone, and tokens are gathered with their
    weights for the experts (megatron-core, transformer/moe/router.py, token_dispatcher.py); where
    it enters with all of it, it routes all (torchtitan, models/moe).
    """
    again = tape.region("moe", x)
    x = tape.entering(x)
    for _time in range(m.jitters):
        tape.small("noise", x.dtype, x.divisor, x.shape)
    if m.router:
        _route(tape, x, m)
    tape.merge("experts.up", (m.experts, 2 * m.ffn if m.gated else m.ffn, x.shape[-1]))
    tape.merge("experts.down", (m.experts, x.shape[-1], m.ffn))
    result = _dense(tape, x, m) if m.dense else _chosen(tape, x, m)
    if m.shared_ffn:
        own = Mlp(m.hidden, m.shared_ffn, m.gated, activation=m.activation)
        shared = feed(tape, x, own)
        if m.shared_gate:
            tape.keep(shared)
            tape.small("shared experts' gate", shared.dtype, x.divisor, (tape.run.tokens, 1))
    if again:
        tape.rebuilding = False
    added = Value("experts result", result.dtype, tape.run.sequence, x.shape)
    return tape.leaving(added, m.residual_dropout)


def _route(tape: Tape, x: Value, m: Moe) -> None:
    wide, weight = m.router_input == FULL, (m.experts, x.shape[-1])
    if not m.router_copy:  # which is a copy of the sum then
        tape.merge("router", weight, FULL if wide else None)
    read = tape.cast(x, FULL) if wide else x
    logits = tape.linear(read, "router", "router scores", (m.experts,), x.divisor)
    if m.router_copy and tape.compute != FULL:
        tape.small("router weight (fp32)", FULL, 1, weight)
    if not m.dense:
        _choice(tape, logits, m)


def _choice(tape: Tape, logits: Value, m: Moe) -> None:
    """The router's probabilities and its choice."""
    n, divisor = tape.run.tokens, logits.divisor
    narrow = m.routing == "sigmoid" or (m.probabilities != FULL and not tape.autocast)
    probabilities = logits.dtype if narrow else FULL
    if m.routing != "chosen":
        tape.small("router probabilities", probabilities, divisor, (n, m.experts))
    if m.group_limited:
        tape.small("mask of groups", MASK, divisor, (n, m.experts))
    tape.small("chosen experts", INDEX, divisor, (n, m.top_k))
    if m.normalised:
        name, width = "weights before they are divided, and their sum", m.top_k + 1
        tape.small(name, probabilities, divisor, (n, width))


def _chosen(tape: Tape, x: Value, m: Moe) -> Value:
    """The chosen experts of each token, and the weights of their results."""
    n, hidden, top_k = tape.run.tokens, x.shape[-1], m.top_k
    as_written = tape.how.qkv == "as_written"
    grouped = tape.how.experts == "grouped" and not (m.one_by_one and as_written)
    tape.small("places of tokens", INDEX, x.divisor, (3 if grouped else 2, n, top_k))
    dtype = tape.compute if tape.autocast else x.dtype
    chosen = Value("expert inputs", dtype, tape.run.routed, (n, top_k, hidden))
    result = _experts_of(tape, chosen, (top_k, m.ffn), m.gated, m.activation, hidden)
    if tape.how.expert_weights == "results":
        tape.keep(result)
    weights = FULL if m.scores == FULL else tape.compute
    tape.small("expert weights", weights, result.divisor, (n, top_k))
    if not grouped:
        tape.small("expert results, weighted", result.dtype, result.divisor, result.shape)
    return result


def _dense(tape: Tape, x: Value, m: Moe) -> Value:
    """Every expert for every token, whose numbers are weighed (with zero where an expert is not
    chosen) before they enter.
    """
    n, hidden, experts = tape.run.tokens, x.shape[-1], m.experts
    tape.small("chosen experts", INDEX, 1, (n, m.top_k))
    tape.small("router probabilities", FULL, 1, (n, experts))
    tape.small("tokens repeated for every expert", x.dtype, 1, (n, experts, hidden))
    tape.small("weights of tokens", x.dtype, 1, (n, experts))
    repeated = Value("expert inputs", x.dtype, 1, (n, experts, hidden))
    return _experts_of(tape, repeated, (experts, m.ffn), True, m.activation, hidden)


def _experts_of(
    tape: Tape, x: Value, width: tuple[int, int], gated: bool, activation: str, hidden: int
) -> Value:
    inside = tape.how.expert_weights == "inside"
    if gated and inside:
        both = tape.linear(x, "experts.up", "gate and up", (width[0], 2 * width[1]), tape.run.tp)
        tape.keep(both)
        inner = Value("down input", both.dtype, tape.run.tp, (x.shape[0], *width))
    elif gated:
        inner = gate_up(tape, x, width, True, activation, "experts")
    else:
        inner = activate(
            tape,
            tape.linear(x, "experts.up", f"{activation} input", width, tape.run.tp),
            activation,
            "down input",
        )
        if inside:
            tape.keep(inner)
            inner = Value("down input, weighted", inner.dtype, inner.divisor, inner.shape)
    return tape.linear(inner, "experts.down", "expert results", (width[0], hidden), tape.run.routed)


@record
class Router:
    """The values of a router of its own (Gemma 4)."""

    hidden: int
    experts: int
    top_k: int
    kind: str = "rms_power"
    """How the norm of its input is computed."""


def scaled_router(r: Router) -> tuple[ParameterRow, ...]:
    """The tensors of a router of its own, with a scale of its input and one of each expert's
    weight.
    """
    return (
        *linear("router", r.experts, r.hidden, split="none"),
        replicated("router.scale", r.hidden),
        replicated("router.expert_scale", r.experts),
    )


def choose(tape: Tape, x: Value, r: Router) -> None:
    """The forward pass of a router of its own: it norms what the layer was given, and weighs the
    chosen experts by their scales.
    """
    n, experts, top_k = tape.run.tokens, r.experts, r.top_k
    normed = tape.norm(x, "router norm", r.kind, "router input", weight=False)
    tape.merge("router", (experts, x.shape[-1]))
    scaled = tape.entering(tape.scale(normed, "router input, scaled"))
    logits = tape.linear(scaled, "router", "router scores", (experts,), scaled.divisor)
    _choice(tape, logits, Moe(r.hidden, experts, top_k, 0, normalised=True))
    tape.small("expert weights, normalised", FULL, scaled.divisor, (n, top_k))
    tape.small("chosen experts' scales", tape.compute, scaled.divisor, (n, top_k))


MOE = Kind(
    component="experts",
    values=Moe,
    sizes=("hidden", "experts", "top_k", "ffn"),
    modules=moe,
    forward=route,
    norms=("mlp", "experts", "moe"),
    words={
        "layout": get_args(ExpertLayout),
        "activation": ACTIVATIONS,
        "scores": PRECISIONS,
        "routing": get_args(Routing),
        "router_input": PRECISIONS,
        "probabilities": PRECISIONS,
    },
)
ROUTER = Kind(
    component="experts",
    values=Router,
    sizes=("hidden", "experts", "top_k"),
    weights=scaled_router,
    forward=choose,
    role="side",
    reads="stream",
    words={"kind": NORMS},
)
