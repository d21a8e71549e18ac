"""Modules from an architecture that is written out: each type's tensors come from the module's own file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from zerocalc.modules.attention import latent_projections, projections
from zerocalc.modules.base import Component, Module, ParameterRow, linear
from zerocalc.modules.mlp import matrices
from zerocalc.modules.moe import moe
from zerocalc.spec.base import FieldError
from zerocalc.spec.stack import ModuleSpec


def _norm(*, dim: int, bias: bool = False, weight: bool = True) -> tuple[ParameterRow, ...]:
    rows: tuple[ParameterRow, ...] = (("norm.weight", (dim,), False),) if weight else ()
    return (*rows, ("norm.bias", (dim,), False)) if bias else rows


def _embedding(*, vocab: int, dim: int) -> tuple[ParameterRow, ...]:
    return (("embedding.weight", (vocab, dim), False),)


def _head(*, vocab: int, dim: int, bias: bool = False, tied: bool = False) -> tuple[ParameterRow, ...]:
    """Tied, the weight is the embedding's; a bias is the head's own."""
    return linear("head", vocab, dim, bias=bias)[1 if tied else 0 :]


_TABLE = re.compile(r"position|embed|wte|wpe|in_proj_weight|input_projection_weight")

ROWS: dict[str, tuple[Component, Callable[..., tuple[ParameterRow, ...]]]] = {
    "norm": ("norms", _norm),
    "embedding": ("embedding", _embedding),
    "head": ("head", _head),
    "attention": ("attention", projections),
    "mla": ("attention", latent_projections),
    "mlp": ("mlp", matrices),
}


def written(spec: ModuleSpec) -> list[Module]:
    """The modules that one written-out module stands for. Raises `FieldError` where its type does not take the values given."""
    if spec.type == "tensors":
        rows: tuple[ParameterRow, ...] = tuple((name, shape, _is_linear(name, shape)) for name, shape in spec.tensors.items())
        used, experts = int(spec.values.get("top_k", 1)), int(spec.values.get("experts", 1))
        return [Module(spec.name, spec.component or "other", rows, (), used, experts, unquantised=spec.unquantised)]
    values: dict[str, Any] = {**spec.values}
    if spec.type == "moe":
        return moe(**_checked(spec, moe, values))
    component, function = ROWS[spec.type]
    rows = function(**_checked(spec, function, values))
    return [Module(spec.name, spec.component or component, rows, transposed=bool(values.get("transposed")), unquantised=spec.unquantised)]


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that is spelled out is a linear layer's weight: a matrix called so, and no table that is looked up."""
    return len(shape) == 2 and name.endswith("weight") and not _TABLE.search(name)


def _checked(spec: ModuleSpec, function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    try:
        inspect.signature(function).bind(**values)
    except TypeError as error:
        raise FieldError("model.stack", f"{spec.type} {spec.name}: {error}") from None
    return values
