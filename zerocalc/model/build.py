"""Building an architecture: from a model's dimensions or its written-out steps, with what each
module saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from zerocalc import model as models
from zerocalc.formulas.formula import ceil_div
from zerocalc.model.architecture import Architecture, Modules
from zerocalc.model.forward import passed, streams_of
from zerocalc.model.module import Layout
from zerocalc.model.registry import Steps, listed, step, written
from zerocalc.model.trace import Adapters, Tape
from zerocalc.spec.base import FieldError
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.model import Model, dimensions

if TYPE_CHECKING:
    from zerocalc.spec.stack import Stack


Parts: TypeAlias = tuple[Steps, list[tuple[int, Steps]], Steps]
"""The steps before the layers, those of each group of layers and how many layers it has, and the
steps after them.
"""


def architecture(
    model: Model, run: Layout | None = None, how: Implementation | None = None
) -> Architecture | None:
    """The modules of a model, with what an implementation of them saves when a layout is given;
    ``None`` for a bare number of parameters.
    """
    if model.is_bare:
        return None
    if model.stack is None:
        before, groups, after = described(model)
        vocab, hidden, tied = model.vocab or 0, model.hidden or 0, bool(model.tied_embeddings)
        width = hidden
    else:
        before, groups, after = _listed(model.stack)
        vocab, hidden, tied = _head_of(model.stack)
        width = _width_of(groups) or hidden
    known = model.stack is None or model.stack.activations
    tape = Tape(run, how, _adapters(model, run)) if run and how and known else None
    layers = [
        (part, _modules(steps, tape, width, recompute))
        for count, steps in groups
        for part, recompute in _recomputed(count, tape)
    ]
    ends = _modules(before, tape, width), _modules(after, tape, width)
    if not any(
        module.parameter_rows
        for modules in (*ends, *[group for _, group in layers])
        for module in modules
    ):
        raise FieldError(
            "model.stack",
            "no module of it has a tensor, so there is nothing to train: list its modules "
            "in before, groups and after",
        )
    streams = max([streams_of(steps) for _, steps in groups], default=1)
    return Architecture(
        ends[0],
        tuple(layers),
        ends[1],
        vocab=vocab,
        hidden=hidden,
        tied=tied,
        tape=tape,
        streams=streams,
    )


def _adapters(model: Model, run: Layout) -> Adapters | None:
    """A model's low-rank adapters, as the tape reads them."""
    lora = model.lora
    if lora is None:
        return None
    cast, computed = run.adapter_dtypes or (lora.dtype, lora.dtype)
    return Adapters(
        lora.rank,
        cast,
        computed,
        lora.dropout > 0,
        lambda layer: models.adapters.adapted(model, layer),
        lambda layer: models.adapters.merged(model, layer),
    )


def _modules(steps: Steps, tape: Tape | None, hidden: int, recompute: str = "none") -> Modules:
    kept = passed(tape, steps, hidden, recompute) if tape else [()] * len(steps)
    return tuple(
        [module for step, saved in zip(steps, kept, strict=True) for module in written(step, saved)]
    )


def _recomputed(count: int, tape: Tape | None) -> Iterator[tuple[int, str]]:
    """Layers that are alike but for recomputation: with ``recompute_every`` k, one in k is
    recomputed.
    """
    if tape is None:
        yield count, "none"
        return
    chosen = ceil_div(count, tape.run.recompute_every)
    yield chosen, tape.run.recompute
    if chosen < count:
        yield count - chosen, "none"


def described(model: Model) -> Parts:
    """A decoder of a known kind from its dimensions: the steps before, in and after its layers."""
    d, gpt2 = dimensions(model), model.kind == "gpt2"
    bias, dropout = gpt2, bool(model.dropout)
    norm = {"dim": d.hidden, "bias": bias}
    attention = {
        "hidden": d.hidden,
        "heads": d.heads,
        "kv_heads": d.kv_heads,
        "head_dim": d.head_dim,
        "fused": gpt2,
        "transposed": gpt2,
        "q_bias": bool(model.qkv_bias),
        "k_bias": bool(model.qkv_bias),
        "v_bias": bool(model.qkv_bias),
        "out_bias": bool(model.out_bias),
        "qk_norm": "head" if model.qk_norm else "none",
        "rotary": not gpt2,
        "softmax": "compute" if gpt2 else "fp32",
        "dropout": dropout,
        "residual_dropout": dropout,
    }
    mlp = {
        "hidden": d.hidden,
        "ffn": d.ffn,
        "gated": not gpt2,
        "bias": bool(model.mlp_bias),
        "transposed": gpt2,
        "activation": model.activation,
        "residual_dropout": dropout,
    }
    layer = [
        step("norm", "attention norm", norm),
        step("attention", "attention", attention),
        step("norm", "mlp norm", norm),
        step("mlp", "mlp", mlp),
    ]
    before = [
        step(
            "embedding",
            "embedding",
            {
                "vocab": d.vocab,
                "dim": d.hidden,
                "positions": d.positions if gpt2 else 0,
                "dropout": dropout,
                "rotary_dim": 0 if gpt2 else d.head_dim,
            },
        )
    ]
    head = {"vocab": d.vocab, "dim": d.hidden, "tied": bool(model.tied_embeddings)}
    return (
        before,
        [(d.layers, layer)],
        [step("norm", "final norm", norm), step("head", "head", head)],
    )


def steps_of(model: Model) -> Parts:
    """The steps before, in and after the layers of a model that is not bare."""
    return described(model) if model.stack is None else _listed(model.stack)


class _Same:
    """A stack as a key that is equal to itself alone."""

    __slots__ = ("stack",)

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __hash__(self) -> int:
        return id(self.stack)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.stack is self.stack


def _listed(stack: Stack) -> Parts:
    return _read(_Same(stack))


@lru_cache(maxsize=8)
def _read(key: _Same) -> Parts:
    """A plan and a search look at one stack many times: it is read once."""
    stack = key.stack
    groups = [(group.count, listed(group.modules)) for group in stack.groups]
    return listed(stack.before), groups, listed(stack.after)


def _width_of(groups: list[tuple[int, Steps]]) -> int:
    """The width of the residual stream: what the layers' modules read."""
    return next(
        (
            int(step.values["hidden"])
            for _, steps in groups
            for step in steps
            if "hidden" in step.values and "idle" not in step.values
        ),
        0,
    )


def _head_of(stack: Stack) -> tuple[int, int, bool]:
    """Vocabulary, hidden size and tying, as the last head says."""
    head = next((spec.values for spec in reversed(stack.after) if spec.type == "head"), {})
    return int(head.get("vocab", 0)), int(head.get("dim", 0)), bool(head.get("tied"))
