"""What describes multi-head or grouped-query attention, and its tensors."""

from __future__ import annotations

from typing import Literal

from zerocalc.ledger import record
from zerocalc.model.kind import Facts
from zerocalc.model.module import ParameterRow, linear, replicated, tensor
from zerocalc.model.trace import Shape

QkNorm = Literal["none", "head", "full", "heads"]
Softmax = Literal["fp32", "compute", "fp32_scores", "shifted"]
Gate = Literal["sigmoid", "softplus"]
Kernels = Literal["all", "eager"]


@record
class Attention:
    """The values of an attention module; sizes in numbers a token."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    """Numbers of a value of each head; 0: as many as of a key."""
    out: int = 0
    """Numbers of the result; 0: as many as it reads."""

    fused: bool = False
    """Queries, keys and values have one tensor, whose bias is then ``q_bias``."""
    transposed: bool = False
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    query_gate: bool = False
    """The product that yields queries also yields a gate of the result, a sigmoid."""
    keys_as_values: bool = False
    """One product for keys and values."""
    shared_keys: bool = False
    """Keys and values are another layer's."""
    memory: bool = False
    """Keys and values are of the encoder's output, which is saved once for all layers."""
    copied: bool = False
    """Keys and values are copied out of the one product (``fused``)."""
    bounded: bool = False
    """An operation bounds queries, keys and values; it saves what it reads."""
    repeated: bool = False
    """Keys and values are repeated for every head, whatever the kernel."""

    qk_norm: QkNorm = "none"
    """A norm over one ``head`` (a vector of head_dim for queries, one for keys), over the ``full``
    queries and keys, or over each of the ``heads`` on its own.
    """
    qk_norm_bias: bool = False
    qk_norm_kind: str | None = None
    """How that norm is computed; without ``qk_norm``: norms without weights."""
    qk_norm_after: bool = False
    """The norm comes after the rotation."""
    value_norm: bool = False
    """Values are normed too, without a weight."""
    rotary: bool = True
    rotary_tables: int = 0
    """Sines and cosines that each layer computes [a position]."""
    rotary_dtype: Literal["fp32", "compute"] = "compute"
    """Their dtype: fp32, or that of the layer's input."""

    kernels: Kernels = "all"
    """Those of the class: ``eager`` where only unfused operations are known (`Stack.only_eager`).
    """
    softmax: Softmax = "fp32"
    """The dtype in which the class computes unfused scores: fp32, or that of compute;
    ``fp32_scores``: queries and keys are cast before their product; ``shifted``: compute's, with
    the largest score subtracted first.
    """
    soft_cap: bool = False
    """An operation bounds the scores; so does one where they are ``clamped``."""
    clamped: bool = False
    sinks: bool = False
    """One learned score a head."""
    sink_gate: bool = False
    """Sinks scale the result in place of being scores."""
    dropout: bool = False
    """On the scores."""
    differential: bool = False
    """The result is the difference of two."""
    dynamic_mask: int = 0
    """The values decide what is masked, from so many positions on; 0: they do not."""

    joined: bool = False
    """The rotation joins turned and other parts, after which queries are in order head by head, as
    is a flash kernel's result until it is copied.
    """
    gate: Gate | None = None
    """The function of a projection of the input that scales the heads' results."""
    gate_width: int = 0
    """Numbers of that projection; 0: as many as of the results."""
    inner_norm: str | None = None
    """How the norm of the heads' results is computed; without it there is none."""
    residual_dropout: bool = False

    @property
    def query(self) -> Shape:
        """Heads, and numbers of a query of each."""
        return self.heads, self.head_dim

    @property
    def key(self) -> Shape:
        """Key-value heads, and numbers of a key of each."""
        return self.kv_heads, self.head_dim

    @property
    def value(self) -> Shape:
        """Key-value heads, and numbers of a value of each."""
        return self.kv_heads, self.value_dim or self.head_dim


def projections(a: Attention) -> tuple[ParameterRow, ...]:
    """The tensors of multi-head or grouped-query attention."""
    hidden, turned, value_dim = a.hidden, a.transposed, a.value[1]
    query, key, value = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * value_dim
    rows: list[ParameterRow] = []
    if a.fused:
        width = query + key + value
        rows += linear("attention.qkv", width, hidden, bias=a.q_bias, transposed=turned)
    else:
        width = 2 * query if a.query_gate else query
        rows += linear("attention.q", width, hidden, bias=a.q_bias, transposed=turned)
        if not a.shared_keys:
            rows += linear("attention.k", key, hidden, bias=a.k_bias, transposed=turned)
        if not a.shared_keys and not a.keys_as_values:
            rows += linear("attention.v", value, hidden, bias=a.v_bias, transposed=turned)
    rows += linear(
        "attention.out",
        a.out or hidden,
        a.heads * value_dim,
        bias=a.out_bias,
        transposed=turned,
        split="rows",
    )
    if a.qk_norm != "none":
        shapes: dict[str, tuple[Shape, Shape]] = {
            "head": ((a.head_dim,), (a.head_dim,)),
            "full": ((query,), (key,)),
            "heads": (a.query, a.key),
        }
        q_shape, k_shape = shapes[a.qk_norm]
        for part in ("weight", "bias") if a.qk_norm_bias else ("weight",):
            rows.append(replicated(f"attention.q_norm.{part}", *q_shape))
            if not a.shared_keys:
                rows.append(replicated(f"attention.k_norm.{part}", *k_shape))
    if a.sinks:
        rows.append(tensor("attention.sinks", a.heads))
    return tuple(rows)


def facts(a: Attention) -> Facts:
    """What attends to what, how its matrices are kept, and when its norms are called."""
    return {
        "transposed": a.transposed,
        "attends": (a.heads, a.kv_heads, a.head_dim, a.value[1]),
        "called": () if a.qk_norm == "none" else _calls(a),
    }


def _calls(a: Attention) -> tuple[str, ...]:
    """Queries' and keys' norms, which are listed last, are called after their projections."""
    if a.fused:
        return "qkv", "q_norm", "k_norm", "out"
    if a.shared_keys:
        return "q", "q_norm", "out"
    return "q", "q_norm", "k", "k_norm", *(() if a.keys_as_values else ("v",)), "out"
