"""A step's modules: each type's tensors come from the module's own file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from zerocalc import presets
from zerocalc.model.kinds.altup import altup_weights, laurel_weights
from zerocalc.model.kinds.attention import projections
from zerocalc.model.kinds.convolution import convolution_weights
from zerocalc.model.kinds.delta import channel_weights, delta_weights
from zerocalc.model.kinds.embedding_head import embedding_tables, head_weights
from zerocalc.model.kinds.latent import latent_projections
from zerocalc.model.kinds.layer_inputs import layer_input_weights, layer_inputs_weights
from zerocalc.model.kinds.linear_attention import block_weights
from zerocalc.model.kinds.lru import recurrent_weights
from zerocalc.model.kinds.mamba import selective_weights, structured_weights
from zerocalc.model.kinds.mlp import matrices
from zerocalc.model.kinds.moe import moe, scaled_router
from zerocalc.model.kinds.norm import norm_weights
from zerocalc.model.module import Component, Module, ParameterRow, SavedRow
from zerocalc.spec.base import FieldError

_TABLE = re.compile(r"position|embed|wte|wpe|in_proj_weight|input_projection_weight")

ROWS: dict[str, tuple[Component, Callable[..., tuple[ParameterRow, ...]]]] = {
    "norm": ("norms", norm_weights),
    "embedding": ("embedding", embedding_tables),
    "head": ("head", head_weights),
    "attention": ("attention", projections),
    "mla": ("attention", latent_projections),
    "delta": ("attention", delta_weights),
    "channel_delta": ("attention", channel_weights),
    "mamba": ("other", selective_weights),
    "mamba2": ("other", structured_weights),
    "convolution": ("other", convolution_weights),
    "recurrent": ("attention", recurrent_weights),
    "linear_attention": ("attention", block_weights),
    "router": ("experts", scaled_router),
    "layer_inputs": ("embedding", layer_inputs_weights),
    "layer_input": ("other", layer_input_weights),
    "altup": ("other", altup_weights),
    "laurel": ("other", laurel_weights),
    "mlp": ("mlp", matrices),
}
PASSING: dict[str, frozenset[str]] = {
    "norm": frozenset({"kind", "input", "reads", "idle"}),
    "embedding": frozenset(
        {"dropout", "rotary_dim", "rotary_dtype", "rotary_in_layers", "own_positions"}
    ),
    "head": frozenset({"soft_cap"}),
    "attention": frozenset(
        {
            "idle",
            "memory",
            "scaled",
            "value_norm",
            "rotary",
            "rotary_tables",
            "rotary_dtype",
            "qk_norm_kind",
            "qk_norm_after",
            "repeated",
            "bounded",
            "copied",
            "joined",
            "softmax",
            "soft_cap",
            "clamped",
            "sink_gate",
            "dropout",
            "kernels",
            "gate",
            "gate_width",
            "inner_norm",
            "residual_dropout",
            "residual_scale",
            "differential",
            "dynamic_mask",
        }
    ),
    "mla": frozenset({"rotary", "dropout"}),
    "delta": frozenset({"doubled"}),
    "channel_delta": frozenset(),
    "mamba": frozenset(),
    "mamba2": frozenset({"scaled"}),
    "convolution": frozenset(),
    "recurrent": frozenset({"activation"}),
    "linear_attention": frozenset({"block", "activation"}),
    "router": frozenset({"top_k", "kind"}),
    "layer_inputs": frozenset({"kind"}),
    "layer_input": frozenset({"activation"}),
    "altup": frozenset({"correct_scale"}),
    "laurel": frozenset(),
    "mlp": frozenset(
        {
            "sparse",
            "idle",
            "picked",
            "activation",
            "dropout",
            "residual_dropout",
            "residual_scale",
            "inner_norm",
        }
    ),
    "moe": frozenset(
        {
            "activation",
            "scores",
            "normalised",
            "routing",
            "router_input",
            "router_copy",
            "dense",
            "jitters",
            "group_limited",
            "probabilities",
            "one_by_one",
            "residual_dropout",
        }
    ),
}
"""Values that only the forward pass reads: they change no tensor of the module."""


def written(step: Any, saved: tuple[SavedRow, ...]) -> list[Module]:
    """The modules that a step stands for. Raises `FieldError` where its type does not take the
    values given.
    """
    if step.type == "tensors":
        rows: tuple[ParameterRow, ...] = tuple(
            (name, shape, _is_linear(name, shape)) for name, shape in step.tensors.items()
        )
        used, experts = int(step.values.get("top_k", 1)), int(step.values.get("experts", 1))
        return [
            Module(
                step.name,
                step.component or "other",
                rows,
                saved,
                used,
                experts,
                unquantised=step.unquantised,
            )
        ]
    passing = PASSING[step.type]
    values = {key: value for key, value in step.values.items() if key not in passing}
    component, function = ROWS.get(step.type, ("experts", moe))
    try:
        if step.type == "moe":
            return moe(saved, **values)
        component, function = ROWS[step.type]
        rows = function(**values)
    except TypeError as error:
        raise _refused(step, error) from None
    transposed, attends = bool(values.get("transposed")), _attends(step.type, values)
    return [
        Module(
            step.name,
            step.component or component,
            rows,
            saved,
            transposed=transposed,
            attends=attends,
            unquantised=step.unquantised,
        )
    ]


def _refused(step: Any, error: TypeError) -> FieldError:
    """Why a module's function did not take its values, in the words of the one who wrote them."""
    _, function = ROWS.get(step.type, ("experts", moe))
    taken = {*inspect.signature(function).parameters, *PASSING[step.type]} - {"saved"}
    unknown = sorted(key for key in step.values if key not in taken)
    fault = (
        f"{unknown[0][:40]!r} is not one of its values{presets.nearest(unknown[0], sorted(taken))}"
        if unknown
        else str(error)
    )
    return FieldError("model.stack", f"{step.type} {step.name}: {fault}")


def _attends(kind: str, values: dict[str, Any]) -> tuple[int, int, int, int]:
    """Heads, key-value heads, and the sizes of a key and a value; latent attention makes a key and
    a value for every head.
    """
    if kind == "attention":
        return (
            values["heads"],
            values["kv_heads"],
            values["head_dim"],
            values.get("value_dim") or values["head_dim"],
        )
    if kind == "mla":
        return (
            values["heads"],
            values["heads"],
            values["nope_dim"] + values["rope_dim"],
            values["value_dim"],
        )
    return 0, 0, 0, 0


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that is spelled out is a linear layer's weight: a matrix called so, and no
    table that is looked up.
    """
    return len(shape) == 2 and name.endswith("weight") and not _TABLE.search(name)
