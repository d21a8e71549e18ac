"""What every module yields: its parameter tensors, and the tensors it saves for backward."""

from __future__ import annotations

import math
from typing import Literal

from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

Component = Literal["embedding", "head", "attention", "mlp", "experts", "norms", "other"]


@record
class Parameter:
    """A parameter tensor: ``linear`` where it is the weight of a linear layer (what autocast copies)."""

    name: str
    shape: tuple[int, ...]
    linear: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@record
class Saved:
    """A tensor kept from forward for backward, per micro-batch and rank [bytes].

    ``divisor`` is what tensor (or sequence) parallelism divides it by; ``rebuilt`` whether selective recomputation rebuilds it instead.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    divisor: int
    bytes: int
    rebuilt: bool = False


@record
class Module:
    """One module of the architecture; ``component`` is where its parameters and activations are counted."""

    name: str
    component: Component
    parameters: tuple[Parameter, ...]
    saved: tuple[Saved, ...]

    @property
    def parameter_elements(self) -> int:
        """Elements of all its parameters."""
        return sum(parameter.elements for parameter in self.parameters)


@record
class Layout:
    """One micro-batch on one rank: ``tokens`` = b·⌈s/cp⌉, what divides tensors, and how attention runs.

    Tensor parallelism divides tensors inside attention and MLP by ``tp``; what it replicates is divided by ``sequence`` (tp with
    sequence parallelism, else 1) [SP §4.2].
    """

    micro_batch: int
    seq: int
    tokens: int
    tp: int
    sequence: int
    flash: bool
    compute: str


def layout(job: Job, seq: int) -> Layout:
    """The layout of a job whose sequence length is ``seq`` tokens."""
    training, parallel = job.training, job.parallel
    return Layout(
        training.micro_batch,
        seq,
        training.micro_batch * ceil_div(seq, parallel.cp),
        parallel.tp,
        parallel.tp if parallel.sequence_parallel else 1,
        training.attention == "flash",
        job.recipe.compute,
    )


def saved(name: str, dtype: str, divisor: int, shape: tuple[int, ...], rebuilt: bool = False) -> Saved:
    """A saved tensor of ``shape`` elements before it is divided."""
    return Saved(name, shape, dtype, divisor, ceil_div(math.prod(shape) * DTYPE_BYTES[dtype], divisor), rebuilt)
