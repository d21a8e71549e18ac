"""Mixture of experts: routed experts, their router, and experts that every token passes through."""

from __future__ import annotations

from typing import Any, Literal, get_args

from zerocalc.model.kind import ACTIVATIONS, NORMS, PRECISIONS, Kind
from zerocalc.model.kinds.mlp import activate, feed, gate_up, matrices
from zerocalc.model.module import (
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
SHARED = "shared experts"


def moe(
    _step: Any,
    saved: tuple[SavedRow, ...],
    *,
    hidden: int,
    experts: int,
    top_k: int,
    ffn: int,
    gated: bool = True,
    bias: bool = False,
    layout: ExpertLayout = "fused",
    router: bool = True,
    router_bias: bool = False,
    correction_bias: bool = False,
    shared_ffn: int = 0,
    shared_bias: bool = False,
    shared_gate: bool = False,
) -> list[Module]:
    """A layer of ``experts`` of which a token passes through ``top_k``.

    ``layout``: all experts in one tensor, ``fused`` (experts, out, in) or ``transposed`` (experts,
    in, out), or ``each`` in its own, or ``stacked``: three matrices of (experts times ffn, hidden)
    for gate, up and down. ``correction_bias``: a learned score an expert (DeepSeek-V3, arXiv
    2412.19437 §2.1.2). ``shared_ffn``: the width of the shared experts together.
    """
    modules: list[Module] = []
    gate = linear("router", experts, hidden, bias=router_bias, split="none") if router else ()
    if correction_bias:
        gate += (replicated("router.correction_bias", experts),)
    if gate:
        modules.append(Module("router", "experts", gate))
    modules.append(
        Module(
            "experts",
            "experts",
            _experts(hidden, experts, ffn, gated, bias, layout),
            saved,
            top_k,
            experts,
            layout == "transposed",
        )
    )
    if shared_ffn:
        shared = matrices(hidden=hidden, ffn=shared_ffn, gated=gated, bias=shared_bias)
        modules.append(
            Module(
                SHARED,
                "experts",
                shared + (linear("shared_gate", 1, hidden) if shared_gate else ()),
            )
        )
    return modules


def _experts(
    hidden: int, experts: int, ffn: int, gated: bool, bias: bool, layout: ExpertLayout
) -> tuple[ParameterRow, ...]:
    if layout == "each":
        one = matrices(hidden=hidden, ffn=ffn, gated=gated, bias=bias)
        return tuple(
            [row._replace(name=f"experts.{i}.{row.name}") for i in range(experts) for row in one]
        )
    if layout == "stacked":
        shape = (experts * ffn, hidden)
        return tuple(
            [ParameterRow(f"experts.{name}", shape, True) for name in ("gate", "up", "down")]
        )
    turned, width = layout == "transposed", 2 * ffn if gated else ffn
    up = (experts, hidden, width) if turned else (experts, width, hidden)
    down = (experts, ffn, hidden) if turned else (experts, hidden, ffn)
    rows = [ParameterRow("experts.up", up, True), ParameterRow("experts.down", down, True)]
    if bias:
        rows.insert(1, tensor("experts.up_bias", experts, width))
        rows.append(replicated("experts.down_bias", experts, hidden))
    return tuple(rows)


def route(
    tape: Tape,
    x: Value,
    *,
    experts: int,
    top_k: int,
    ffn: int,
    gated: bool = True,
    activation: str = "silu",
    shared_ffn: int = 0,
    shared_gate: bool = False,
    scores: Precision = "fp32",
    normalised: bool = False,
    routing: Routing = "softmax",
    router_input: Precision = "compute",
    router_copy: bool = False,
    dense: bool = False,
    jitters: int = 0,
    group_limited: bool = False,
    router: bool = True,
    probabilities: Precision = "fp32",
    one_by_one: bool = False,
    residual_dropout: bool = False,
) -> Value:
    """The forward pass of routed experts, a token going through ``top_k`` of them; ``scores`` is
    the dtype of what weighs their results, ``normalised`` whether the weights are divided by their
    sum, ``routing`` whether probabilities are a softmax or sigmoid over all experts or a softmax
    over the ``chosen`` ones, ``router_input`` whether the class casts it, and ``router_copy`` its
    weight. ``dense``: every token goes through every expert, weighed before it (Llama 4).
    ``jitters``: how often the tokens are multiplied by noise first. ``group_limited``:
    probabilities of experts outside the best groups are masked before the choice. Without
    ``router`` a step of its own has chosen. ``probabilities``: the dtype of their softmax.
    ``one_by_one``: the class runs one expert after the other.

    Grouped, the tokens of all experts lie in one tensor; one after the other, each expert keeps its
    tokens, and their results once more. Experts on ranks of their own see as many tokens as there
    are on a rank, each expert as many as another: ranks send each other theirs. Where each rank
    enters with its share of a sequence it routes that alone, and tokens are gathered with their
    weights for the experts (megatron-core, transformer/moe/router.py, token_dispatcher.py); where
    it enters with all of it, it routes all (torchtitan, models/moe).
    """
    again = tape.region("moe", x)
    x = tape.entering(x)
    for _time in range(jitters):
        tape.small("noise", x.dtype, x.divisor, x.shape)
    if router:
        if not router_copy:  # which is a copy of the sum then
            tape.merge("router", (experts, x.shape[-1]), FULL if router_input == FULL else None)
        logits = tape.linear(
            tape.cast(x, FULL) if router_input == FULL else x,
            "router",
            "router scores",
            (experts,),
            x.divisor,
        )
        if router_copy and tape.compute != FULL:
            tape.small("router weight (fp32)", FULL, 1, (experts, x.shape[-1]))
        if not dense:
            _choice(tape, logits, experts, top_k, routing, group_limited, normalised, probabilities)
    tape.merge("experts.up", (experts, 2 * ffn if gated else ffn, x.shape[-1]))
    tape.merge("experts.down", (experts, x.shape[-1], ffn))
    result = (
        _dense(tape, x, experts, top_k, ffn, activation)
        if dense
        else _chosen(tape, x, top_k, ffn, gated, activation, scores, one_by_one)
    )
    if shared_ffn:
        shared = feed(tape, x, ffn=shared_ffn, activation=activation, gated=gated)
        if shared_gate:
            tape.keep(shared)
            tape.small("shared experts' gate", shared.dtype, x.divisor, (tape.run.tokens, 1))
    if again:
        tape.rebuilding = False
    return tape.leaving(
        Value("experts result", result.dtype, tape.run.sequence, x.shape), residual_dropout
    )


def _choice(
    tape: Tape,
    logits: Value,
    experts: int,
    top_k: int,
    routing: str,
    group_limited: bool,
    normalised: bool,
    softmax: str = FULL,
) -> None:
    """The router's probabilities and its choice."""
    n, divisor = tape.run.tokens, logits.divisor
    probabilities = (
        logits.dtype if routing == "sigmoid" or (softmax != FULL and not tape.autocast) else FULL
    )
    if routing != "chosen":
        tape.small("router probabilities", probabilities, divisor, (n, experts))
    if group_limited:
        tape.small("mask of groups", MASK, divisor, (n, experts))
    tape.small("chosen experts", INDEX, divisor, (n, top_k))
    if normalised:
        tape.small(
            "weights before they are divided, and their sum", probabilities, divisor, (n, top_k + 1)
        )


def _chosen(
    tape: Tape,
    x: Value,
    top_k: int,
    ffn: int,
    gated: bool,
    activation: str,
    scores: str,
    one_by_one: bool,
) -> Value:
    """The chosen experts of each token, and the weights of their results."""
    n, hidden = tape.run.tokens, x.shape[-1]
    grouped = tape.how.experts == "grouped" and not (one_by_one and tape.how.qkv == "as_written")
    tape.small("places of tokens", INDEX, x.divisor, (3 if grouped else 2, n, top_k))
    chosen = Value(
        "expert inputs",
        tape.compute if tape.autocast else x.dtype,
        tape.run.routed,
        (n, top_k, hidden),
    )
    result = _experts_of(tape, chosen, (top_k, ffn), gated, activation, hidden)
    if tape.how.expert_weights == "results":
        tape.keep(result)
    tape.small(
        "expert weights", FULL if scores == FULL else tape.compute, result.divisor, (n, top_k)
    )
    if not grouped:
        tape.small("expert results, weighted", result.dtype, result.divisor, result.shape)
    return result


def _dense(tape: Tape, x: Value, experts: int, top_k: int, ffn: int, activation: str) -> Value:
    """Every expert for every token, whose numbers are weighed (with zero where an expert is not
    chosen) before they enter.
    """
    n, hidden = tape.run.tokens, x.shape[-1]
    tape.small("chosen experts", INDEX, 1, (n, top_k))
    tape.small("router probabilities", FULL, 1, (n, experts))
    tape.small("tokens repeated for every expert", x.dtype, 1, (n, experts, hidden))
    tape.small("weights of tokens", x.dtype, 1, (n, experts))
    return _experts_of(
        tape,
        Value("expert inputs", x.dtype, 1, (n, experts, hidden)),
        (experts, ffn),
        True,
        activation,
        hidden,
    )


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


def scaled_router(*, hidden: int, experts: int) -> tuple[ParameterRow, ...]:
    """The tensors of a router of its own (Gemma 4), with a scale of its input and one of each
    expert's weight.
    """
    return (
        *linear("router", experts, hidden, split="none"),
        replicated("router.scale", hidden),
        replicated("router.expert_scale", experts),
    )


def choose(tape: Tape, x: Value, *, experts: int, top_k: int, kind: str = "rms_power") -> None:
    """The forward pass of a router of its own: it norms what the layer was given, and weighs the
    chosen experts by their scales.
    """
    normed = tape.norm(x, "router norm", kind, "router input", weight=False)
    tape.merge("router", (experts, x.shape[-1]))
    scaled = tape.entering(tape.scale(normed, "router input, scaled"))
    logits = tape.linear(scaled, "router", "router scores", (experts,), scaled.divisor)
    _choice(tape, logits, experts, top_k, "softmax", False, True)
    tape.small("expert weights, normalised", FULL, scaled.divisor, (tape.run.tokens, top_k))
    tape.small("chosen experts' scales", tape.compute, scaled.divisor, (tape.run.tokens, top_k))


MOE = Kind(
    component="experts",
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
    sizes=("hidden", "experts", "top_k"),
    weights=scaled_router,
    forward=choose,
    role="side",
    reads="stream",
    words={"kind": NORMS},
)
