"""What few views show of a plan: made when it is asked for, and in no document."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from zerocalc.ledger import Moment, record


@record
class TensorShare:
    """One tensor that a layer saves for backward: its bytes on one rank, and their share of all
    that the layer saves. There are ``layers`` like it.

    ``term`` is the name of the entry that counts it, while not all of the layer is recomputed.
    """

    module: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    divisor: int
    bytes: int
    share: float
    rebuilt: bool
    layers: int
    group: int
    """Which of the groups of layers that are alike it belongs to, 1 the first."""
    term: str


@record
class PipelineStages:
    """Stages ``first`` to ``last`` of a pipeline at one ZeRO stage, each alike [elements and bytes
    per GPU].

    ``in_flight``: micro-batches held at once, or chunks of layers, each of one micro-batch, under
    interleaving. ``activations_bytes`` are those at the peak. ``copied_parameters``: of
    ``parameters``, those of a tied head's own copy of the embedding.
    """

    name: str
    stage: int
    first: int
    last: int
    layers: int
    parameters: int
    copied_parameters: int
    in_flight: int
    states_bytes: int
    activations_bytes: int | None
    peak_bytes: int
    peak_moment: Moment
    fits: bool | None


class Details:
    """What few views show of a plan: made when it is first asked for, of the same model as the
    plan, and kept.

    Sent to another process, it goes with all of it made.
    """

    def __init__(
        self,
        saved_tensors: Callable[[], tuple[TensorShare, ...]],
        pipeline_stages: Callable[[], tuple[PipelineStages, ...]],
        largest_leaf: Callable[[], int | None],
    ) -> None:
        self._saved_tensors, self._pipeline_stages = saved_tensors, pipeline_stages
        self._largest_leaf = largest_leaf

    @cached_property
    def saved_tensors(self) -> tuple[TensorShare, ...]:
        """What one layer of each group of alike layers saves, in order; empty where unknown."""
        return self._saved_tensors()

    @cached_property
    def pipeline_stages(self) -> tuple[PipelineStages, ...]:
        """Stages at each ZeRO stage, alike ones together; empty where an even share is known."""
        return self._pipeline_stages()

    @cached_property
    def largest_leaf(self) -> int | None:
        """Parameters of the largest leaf module [elements]; ``None`` for a bare number."""
        return self._largest_leaf()

    def __getstate__(self) -> dict[str, Any]:
        made = ("saved_tensors", "pipeline_stages", "largest_leaf")
        return {name: getattr(self, name) for name in made}


class Detailed:
    """A result with details that are no field: no document has them, no comparison reads them."""

    __slots__ = ("details",)
    details: Details
