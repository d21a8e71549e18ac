"""The degrees of model parallelism; the remaining GPUs are data-parallel."""

from typing import Self

from pydantic import StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec


class Parallel(Spec):
    """Degrees of tensor, pipeline, context and expert parallelism, and what each divides."""

    tp: Whole = 1
    """Tensor-parallel degree [ranks]. Default: 1. Divides the matrices of a layer and most of its
    activations; adds collectives to every layer.
    """
    pp: Whole = 1
    """Pipeline-parallel degree [stages]. Default: 1. Divides the layers; adds point-to-point
    traffic and the pipeline bubble.
    """
    cp: Whole = 1
    """Context-parallel degree [ranks]. Default: 1. Divides the tokens of a sequence; these ranks
    hold the same parameters, so gradients are reduced over them and states sharded over them too.
    """
    ep: Whole = 1
    """Expert-parallel degree: ranks to which routed experts are assigned, taken from tp·cp·dp.
    Default: 1. Divides routed experts only; adds all-to-alls of tokens.
    """
    etp: Whole | None = None
    """Tensor-parallel degree of each routed expert [ranks]. Default: tp; with ``ep`` above 1, what
    the framework does.
    """
    interleave: Whole = 1
    """Chunks of layers per pipeline stage (virtual stages). Default: 1. Shortens the bubble; more
    micro-batches are in flight.
    """
    first_stage_layers: Whole | None = None
    """Layers of the first pipeline stage. Default: assigned evenly, as the framework does."""
    last_stage_layers: Whole | None = None
    """Layers of the last pipeline stage. Default: assigned evenly, as the framework does."""
    pipeline_stage: Whole | None = None
    """The pipeline stage to estimate: 1 is the first, ``pp`` the last. Default: the one that needs
    most memory.
    """
    sequence_parallel: StrictBool = False
    """Whether tensor-parallel ranks split, along the sequence, the activations that they would
    otherwise replicate. Default: no. Divides those by tp; all-reduces become pairs of all-gather
    and reduce-scatter.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sequence_parallel and self.tp == 1:
            raise FieldError(
                "parallel.sequence_parallel",
                "needs tp above 1: it splits what tensor-parallel ranks replicate",
            )
        for name in ("first_stage_layers", "last_stage_layers"):
            if getattr(self, name) is not None and self.pp == 1:
                raise FieldError(f"parallel.{name}", "needs pp above 1")
        if self.pipeline_stage is not None and self.pipeline_stage > self.pp:
            raise FieldError(
                "parallel.pipeline_stage",
                f"{self.pipeline_stage} is not one of the {self.pp} pipeline stages (pp)",
            )
        return self
