"""What every module yields: its parameter tensors, and the tensors it saves for backward."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

Component = Literal["embedding", "head", "attention", "mlp", "experts", "norms", "other"]
SHARED = "shared experts"
"""The name of the module of experts that every token passes through."""


class ParameterRow(NamedTuple):
    """A parameter tensor: ``linear`` where it is the weight of a linear layer (what autocast
    copies).
    """

    name: str
    shape: tuple[int, ...]
    linear: bool = False


class Replicated(ParameterRow):
    """A parameter of which every tensor-parallel rank holds all: norms, learned positions, routers,
    what a row-parallel layer adds after its sum.

    Source: megatron-core 0.16.1, tensor_parallel/layers.py; [SP] §4.2.
    """

    __slots__ = ()


@record
class Saved:
    """A tensor kept from forward for backward, per micro-batch and rank [bytes].

    ``divisor`` is what tensor (or sequence) parallelism divides it by; ``rebuilt`` whether it
    exists only while backward computes it again.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    divisor: int
    bytes: int
    rebuilt: bool = False


SavedRow: TypeAlias = tuple[str, str, int, tuple[int, ...], bool]
"""A `Saved` as a module lists it: name, dtype, divisor, shape, rebuilt."""


@record
class Module:
    """One module of the architecture; ``component`` is where its parameters and activations are
    counted.

    A token passes through ``used`` of its ``experts`` equal parts; both are 1 but for routed
    experts.
    """

    name: str
    component: Component
    parameter_rows: tuple[ParameterRow, ...]
    saved_rows: tuple[SavedRow, ...] = ()
    used: int = 1
    experts: int = 1
    transposed: bool = False
    """Whether its matrices are kept as (inputs, outputs)."""
    attends: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of attention: heads, key-value heads, numbers of a key and of a value of each; zeros where it
    is none.
    """
    unquantised: tuple[str, ...] = ()
    """Weights of linear layers that quantisers leave as they are."""
    listed_last: bool = False
    """Whether a layer lists it behind those that are called after it."""
    called: tuple[str, ...] = ()
    """Its parts in the order in which they are called, by the last of their names, with those that
    have no tensors; empty where they are called as they are listed.
    """

    @property
    def saved(self) -> tuple[Saved, ...]:
        """The tensors it saves for backward."""
        rows = self.saved_rows
        return tuple(
            [
                Saved(row[0], row[3], row[1], row[2], size, row[4])
                for row, size in zip(rows, saved_bytes(rows), strict=True)
            ]
        )

    @property
    def parameter_elements(self) -> int:
        """Elements of all its parameters."""
        return sum([math.prod(shape) for _, shape, _ in self.parameter_rows])

    @property
    def active_elements(self) -> int:
        """Elements that one token passes through."""
        return self.parameter_elements * self.used // self.experts

    @property
    def kept_bytes(self) -> int:
        """Bytes kept from forward to backward for one micro-batch."""
        return sum(saved_bytes([row for row in self.saved_rows if not row[-1]]))

    @property
    def rebuilt_bytes(self) -> int:
        """Bytes that backward computes again before it uses them."""
        return sum(saved_bytes([row for row in self.saved_rows if row[-1]]))


@record
class Layout:
    """One micro-batch on one rank: ``tokens`` = b·⌈s/cp⌉, what divides tensors, how attention runs,
    and what is recomputed.

    Tensor parallelism divides tensors inside attention and MLP by ``tp``; what it replicates is
    divided by ``sequence`` (tp with sequence parallelism, else 1) [SP §4.2].
    """

    micro_batch: int
    seq: int
    tokens: int
    tp: int
    sequence: int
    kernel: str
    compute: str
    autocast: bool
    recompute: str
    recompute_every: int
    recompute_modules: tuple[str, ...]
    adapter_dtypes: tuple[str, str] | None
    routed: int = 1
    """What the tokens that a rank's routed experts see are divided by: tp over etp, each expert
    seeing as many as the others.
    """


def layout(job: Job, seq: int) -> Layout:
    """The layout of a job whose sequence length is ``seq`` tokens."""
    training, parallel = job.training, job.parallel
    return Layout(
        training.micro_batch,
        seq,
        training.micro_batch * ceil_div(seq, parallel.cp),
        parallel.tp,
        parallel.tp if parallel.sequence_parallel else 1,
        training.attention,
        job.recipe.compute,
        job.recipe.autocast,
        training.recompute,
        training.recompute_every,
        training.recompute_modules,
        adapter_dtypes(job),
        parallel.tp // job.expert_tensor_parallel,
    )


def adapter_dtypes(job: Job) -> tuple[str, str] | None:
    """The dtype to which adapters' layers cast what they are given, and the one in which their
    products run; ``None`` without adapters.

    PEFT casts to the dtype of the adapters' weights. A layer's unit has gathered them by then; a
    unit of each matrix does so only when its product is called, so that each adapted layer has a
    copy of its own (torch 2.13, FSDP1 with PEFT 0.21).
    """
    own = job.adapter_dtype
    if own is None:
        return None
    gathered = job.trained_recipe.gather
    return (
        own if job.framework.adapters == "each" else gathered,
        job.recipe.compute if job.recipe.autocast else gathered,
    )


def saved_bytes(rows: Iterable[SavedRow]) -> list[int]:
    """Bytes of saved tensors: the elements of the shape, divided, the division rounded up."""
    return [
        -(-math.prod(shape) * DTYPE_BYTES[dtype] // divisor) for _, dtype, divisor, shape, _ in rows
    ]


def tensor(name: str, *shape: int) -> ParameterRow:
    """A tensor that is no linear layer's."""
    return ParameterRow(name, shape)


def replicated(name: str, *shape: int) -> ParameterRow:
    """A tensor that is no linear layer's, and that every tensor-parallel rank holds whole."""
    return Replicated(name, shape)


Split = Literal["columns", "rows", "none"]


def linear(
    name: str,
    out: int,
    inner: int,
    *,
    bias: bool = False,
    transposed: bool = False,
    split: Split = "columns",
) -> tuple[ParameterRow, ...]:
    """The tensors of a linear layer: a weight of (out, inner), or (inner, out) where an
    implementation keeps it transposed, and a bias.

    ``split``: how tensor parallelism divides it: its outputs (``columns``), its inputs (``rows``),
    after whose sum every rank adds the whole bias, or not at all.
    """
    shape = (inner, out) if transposed else (out, inner)
    weight = (Replicated if split == "none" else ParameterRow)(f"{name}.weight", shape, True)
    if not bias:
        return (weight,)
    return weight, (ParameterRow if split == "columns" else Replicated)(f"{name}.bias", (out,))
