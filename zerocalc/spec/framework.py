"""The framework: how states are sharded, gathered and reduced, as data."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec
from zerocalc.units import Whole, shown

Stage = Annotated[int, Field(ge=0, le=3, strict=True)]
Moment = Literal["load", "forward", "loss", "backward_start", "backward_end", "step"]
Part = Literal["all", "trainable", "persistent", "partitioned", "root", "embedding", "layer", "head"]
Limit = Literal["reduce_bucket_size", "sub_group_size", "max_live_parameters", "max_reuse_distance"]
TrafficDtype = Literal["gather", "reduce", "compute", "weights", "fp32"]
"""Words for what a recipe says, or a dtype."""


class Move(Spec):
    """One kind of collective: when, by which operation, in which calls and dtype, and how often.

    ``by``: one call for each ``unit`` (of the kinds in ``units``, all if none is named), one for the whole part ``of`` the parameters, as many as a
    ``bucket`` of the reduce size takes, or as many as PyTorch's DDP makes (``arrival``: tensors as their gradients come, up to so many bytes).
    ``beyond``: only what is more than an option's number of elements. ``per``: a ``micro_batch``, a ``step``, or a ``reduction`` (which the stage's
    ``sync`` says). ``over``: the ``shards`` of one copy, or its ``replicas``.
    """

    moment: Literal["forward", "backward", "step"]
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
    what: Literal["weights", "gradients"]
    by: Literal["unit", "whole", "bucket", "arrival"]
    of: Part = "all"
    beyond: Limit | None = None
    units: tuple[Literal["root", "embedding", "layer", "head"], ...] = ()
    dtype: TrafficDtype
    per: Literal["micro_batch", "step", "reduction"]
    over: Literal["shards", "replicas"] = "shards"
    overlapped: StrictBool = False
    padded: StrictBool = True


class Holding(Spec):
    """Memory beside states and activations: ``copies`` of a part of the parameters, from one moment to another, a rank's share of it if ``sharded``.

    ``after_layers``: only once no layer is left in backward and what stands outside the layers is reduced; activations are gone by then.
    ``largest``: not more than so many elements: the option of that name, such as reduce_bucket_size; ``whole``: as many, however small the part.
    ``where``: only where the recipe keeps gradients in 16 bits.
    ``if_overlapped``: so many times as much where communication overlaps with computing.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    kind: Literal["gathered", "buffers", "copies"]
    of: Part
    dtype: TrafficDtype
    copies: Whole = 1
    sharded: StrictBool = False
    first: Moment
    last: Moment
    after_layers: StrictBool = False
    largest: Limit | None = None
    whole: StrictBool = False
    where: Literal["16-bit gradients"] | None = None
    if_overlapped: Whole = 1


class FrameworkStage(Spec):
    """One ZeRO stage as a framework runs it.

    ``sync``: whether gradients are reduced once a step or after every micro-batch. ``states``: the stage as which the recipe's rows are sharded,
    where that is another one. ``pads``: how shards are rounded up. ``gradients_from``: where gradients lie
    in a buffer for good, the moment from which there is one. ``gradients_until``: the last moment of gradients. A stage without ``moves`` and
    ``holds`` runs as [ZeRO] describes, by ZeRO's options: ``reduce_buffers`` are its buckets held at once when reduction overlaps backward, which
    it does, unless told otherwise, where it ``overlaps``.
    """

    stage: Stage
    name: Annotated[str, Field(max_length=40)]
    sync: Literal["step", "micro_batch"]
    states: Stage | None = None
    pads: Literal["none", "first_dimension", "tensor", "flat", "flat_twice", "aligned"] = "none"
    reduce_buffers: Whole = 1
    overlaps: StrictBool = True
    gradients_from: Literal["load"] | None = None
    gradients_until: Literal["backward_end", "step"] = "step"
    moves: tuple[Move, ...] = ()
    holds: tuple[Holding, ...] = ()

    @property
    def published(self) -> bool:
        """Whether the stage runs as [ZeRO] describes, by its options."""
        return not self.moves and not self.holds

    @property
    def sharded_as(self) -> int:
        """The stage as which the recipe's rows are sharded."""
        return self.stage if self.states is None else self.states


class Framework(Spec):
    """Behaviour that differs between frameworks; ``paper`` is what [ZeRO] describes.

    ``wraps``: whether what stands outside the layers is one unit (``root``) or embedding and head are one each (``ends``). ``options``:
    those of ZeRO's choices that mean something to it, all if none are named.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    recipe: Annotated[str, Field(max_length=LONGEST_PATH)]
    implementation: Annotated[str, Field(max_length=LONGEST_PATH)]
    units_in_flight: Whole
    wraps: Literal["ends", "root"] = "ends"
    options: tuple[str, ...] | None = None
    note: Annotated[str, Field(max_length=500)] | None = None
    stages: Annotated[tuple[FrameworkStage, ...], Field(min_length=1, max_length=4)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        numbers = [stage.stage for stage in self.stages]
        if numbers != sorted(set(numbers)):
            raise FieldError("framework.stages", "are not in rising order, each once")
        return self

    def stage(self, number: int) -> FrameworkStage:
        """The behaviour at a stage; `FieldError` where the framework lacks it."""
        for stage in self.stages:
            if stage.stage == number and not isinstance(number, bool):
                return stage
        have = ", ".join(str(stage.stage) for stage in self.stages)
        raise FieldError("zero.stage", f"{shown(number)} is not a stage of {self.name}; it has {have}")
