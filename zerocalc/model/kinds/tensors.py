"""Tensors that are spelled out, name by name, and the operations that they take part in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, Kind
from zerocalc.model.kinds.mlp import activate
from zerocalc.model.module import Component, Module, ParameterRow, Replicated, SavedRow
from zerocalc.model.trace import Tape, Value

_TABLE = re.compile(r"position|embed|wte|wpe|in_proj_weight|input_projection_weight")
_CALLED = (
    *("q", "q_down", "q_norm", "q_up", "k", "k_norm", "v", "kv_down", "kv_norm", "kv_up"),
    *("qkv", "out", "gate", "up", "down"),
)
"""The order in which parts are called, by name; others come behind, as they are listed."""
_REPLICATED = re.compile(
    r"^(norm\.|positions\.|router|attention\.(q|kv)_down|token_types\.|pooler\.|binary_head\."
    r"|transform\.)|(norm\.weight|norm\.bias|\.out\.bias|\.down\.bias|down_bias)$"
)
"""What tensor-parallel ranks each hold whole, by name: BERT's small layers around its heads are
among them (megatron-core 0.16.1, models/bert).
"""


@record
class Tensors:
    """The values of tensors that are spelled out: what they take part in."""

    top_k: int = 1
    """A token passes through so many of the ``experts`` that they are."""
    experts: int = 1
    dense: bool = False
    """They are a linear layer, perhaps with an ``activation``."""
    activation: str = ""
    buckets: int = 0
    """Buckets of relative positions."""
    mask: bool = False
    """A dropout."""
    memory: bool = False
    """The stream is the encoder's output, which all decoder layers read."""


def listed(step: Any, saved: tuple[SavedRow, ...]) -> list[Module]:
    """The module of the tensors that a step spells out."""
    component: Component = step.component or "other"
    rows = tuple([_row(name, shape) for name, shape in step.tensors])
    return [
        Module(
            step.name,
            component,
            rows,
            saved,
            step.fields.top_k,
            step.fields.experts,
            unquantised=step.unquantised,
            listed_last=component == "norms" and len(rows) == 1,
            called=_calls(rows),
        )
    ]


def _calls(rows: Iterable[ParameterRow]) -> tuple[str, ...]:
    parts = {name.rpartition(".")[0].rpartition(".")[2] for name, _, _ in rows}
    return tuple([part for part in _CALLED if part in parts])


def _row(name: str, shape: tuple[int, ...]) -> ParameterRow:
    """A linear layer's weight is a matrix called so that is no table that is looked up."""
    linear = len(shape) == 2 and name.endswith("weight") and not _TABLE.search(name)
    return (Replicated if _REPLICATED.search(name) else ParameterRow)(name, shape, linear)


def operate(tape: Tape, stream: Value, read: Value | None, step: Any) -> tuple[Value, Value | None]:
    """The residual stream, and what the next module reads in its place, after operations that
    tensors, or none, take part in.
    """
    t: Tensors = step.fields
    run = tape.run
    if t.dense:
        stream, read = _dense(tape, stream if read is None else read, step, t.activation), None
    if t.buckets:
        shape = (run.tokens // run.micro_batch, run.seq)
        tape.small("buckets of relative positions", "int64", 1, shape)
    if t.mask:
        read = tape.dropout(stream if read is None else read, step.name)
    if t.memory and not tape.autocast:
        tape.keep(tape.like(stream, "encoder output"))
    return stream, read


def _dense(tape: Tape, x: Value, step: Any, activation: str) -> Value:
    """A dense layer of the stream or its norm: what follows reads its result."""
    name, (out, inner) = next((name, shape) for name, shape in step.tensors if len(shape) > 1)
    if x.shape[-1] != inner:
        x = tape.stream(f"{step.name} input", inner)
    result = f"{step.name} output"
    y = tape.linear(x, name.removesuffix(".weight"), result, (out,), tape.run.sequence)
    return activate(tape, y, activation, result) if activation else y


TENSORS = Kind(
    component="other",
    values=Tensors,
    sizes=(),
    modules=listed,
    forward=operate,
    role="listed",
    words={"activation": ACTIVATIONS},
)
