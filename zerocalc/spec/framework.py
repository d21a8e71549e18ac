"""The framework: how states are sharded, gathered and reduced, as data."""

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, ValidationError, model_validator

from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec, explain
from zerocalc.units import Whole, shown

if TYPE_CHECKING:
    from zerocalc.spec.framework_offload import Offload

Stage = Annotated[int, Field(ge=0, le=3, strict=True)]
Moment = Literal["load", "forward", "loss", "backward_start", "backward_end", "step"]
Part = Literal["all", "trainable", "persistent", "partitioned", "root", "embedding", "layer", "head", "tensor", "edges", "touched"]
"""Parts of the parameters; ``tensor``: the largest one; ``edges``: what tensors with a part in a rank's share have beyond it, and the one whose
gradient is being made; ``touched``: tensors with a part in the share of some rank of a node, whole, once for each rank."""
Pinned = Literal["whole", "unit", "tensor"]
"""Allocations of page-locked memory: one, one a unit, one a tensor."""
Limit = Literal["reduce_bucket_size", "sub_group_size", "max_live_parameters", "max_reuse_distance"]
Choice = Literal[
    "secondary_group",
    "reduce_to_owner",
    "grad_accum_dtype",
    "contiguous_gradients",
    "quantised_weights",
    "quantised_gradients",
    "offload_optimizer",
    "offload_params",
]
"""Options of ZeRO's by which rows are there or not."""
TrafficDtype = Literal["gather", "reduce", "compute", "weights", "fp32", "int8"]
"""Words for what a recipe says, or a dtype."""


class Move(Spec):
    """One kind of collective: when, by which operation, in which calls and dtype, and how often.

    ``by``: one call for each ``unit`` (of the kinds in ``units``, all if none is named), one for the whole part ``of`` the parameters, one for each
    ``tensor`` of it, as many as a ``bucket`` of the reduce size takes, as many as PyTorch's DDP makes (``arrival``: tensors as their gradients come,
    up to so many bytes), what a ``window`` over the modules to come decides (formulas/windows.py), or in two ``hops``,
    quantised (traffic/hops.py). ``order``: in which tensors go into
    buckets, as their gradients come (``arrival``) or as the ``model`` lists them while nothing overlaps. ``beyond``: where the modules are not known,
    only what is more than an option's number of elements. ``scale_per``: each call is followed by one of fp32 scales, for about so many elements one
    (`window` only). ``per``: a ``micro_batch``, a ``step``, or a ``reduction`` (which the stage's ``sync``
    says). ``over``: the ``shards`` of one copy, or its ``replicas``. ``when`` and ``unless``: only where an option is set, or is not.
    """

    moment: Literal["forward", "backward", "step"]
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]
    what: Literal["weights", "gradients"]
    by: Literal["unit", "whole", "tensor", "bucket", "arrival", "window", "hops"]
    of: Part = "all"
    order: Literal["arrival", "model"] = "arrival"
    when: Choice | None = None
    unless: tuple[Choice, ...] = ()
    beyond: Limit | None = None
    units: tuple[Literal["root", "embedding", "layer", "head"], ...] = ()
    dtype: TrafficDtype
    scale_per: Whole | None = None
    per: Literal["micro_batch", "step", "reduction"]
    over: Literal["shards", "replicas"] = "shards"
    overlapped: StrictBool = False
    padded: StrictBool = True


class Holding(Spec):
    """Memory beside states and activations: ``copies`` of a part of the parameters, from one moment to another, a rank's share of it if ``sharded``.

    ``after_layers``: only once no layer is left in backward and what stands outside the layers is reduced; activations are gone by then.
    ``largest``: not more than so many elements: the option of that name, such as reduce_bucket_size; ``whole``: as many, however small the part.
    ``windowed``: where the modules are known, not that part but the most that windows over the modules to come gather in the pass of the first moment
    (at the end of backward: in its last module). ``accumulated``: from forward on where gradients outlive a micro-batch.
    ``only``: where they do, or where reduction overlaps backward and they do not, or where the recipe keeps gradients in 16 bits.
    ``if_overlapped``: so many times as much where communication overlaps with computing. ``over``: a rank's share is of the ``shards``, or of the
    ``secondary`` group that holds another copy. ``when`` and ``unless``: only where an option is set, or is not; ``device``: only where it is set to
    that. ``beside``: in whose memory it lies: the GPU's, the host's, or that of the optimizer or the parameters, wherever these are. ``pinned``: on
    the host, in page-locked allocations: one, one a tensor, or one a unit; ``pieces``: one for each so many elements. ``elements``: so many,
    whatever the part has.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    kind: Literal["gathered", "gradients", "buffers", "copies"]
    of: Part
    dtype: TrafficDtype
    copies: Whole = 1
    sharded: StrictBool = False
    first: Moment
    last: Moment
    after_layers: StrictBool = False
    largest: Limit | None = None
    whole: StrictBool = False
    windowed: StrictBool = False
    accumulated: StrictBool = False
    only: Literal["accumulated", "overlapped", "16-bit gradients"] | None = None
    if_overlapped: Whole = 1
    over: Literal["shards", "secondary"] = "shards"
    when: Choice | None = None
    unless: tuple[Choice, ...] = ()
    device: Literal["cpu", "nvme"] | None = None
    beside: Literal["gpu", "host", "optimizer", "params"] = "gpu"
    pinned: Pinned | None = None
    pieces: Limit | None = None
    elements: Whole | None = None


class Unread(dict[str, Any]):
    """A table that is validated only where it is asked for; like all of a job, hashable by value."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


def _table(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a table of fields")
    return None if value is None else Unread(value)


class FrameworkStage(Spec):
    """One ZeRO stage as a framework runs it.

    ``sync``: whether gradients are reduced once a step or after every micro-batch. ``states``: the stage as which the recipe's rows are sharded,
    where that is another one, ``states_if_overlapped`` where reduction overlaps backward and nothing accumulates. ``gradients_unless``: options in
    whose place rows of the stage's own stand for gradients. ``pads``: how shards are rounded up. ``gradients_from``: where gradients lie in a buffer
    for good, the moment from which there is one. ``gradients_until``: the last moment of gradients.
    ``offload``: what it can keep elsewhere than on the GPU (framework_offload.py).
    A stage without ``moves`` and ``holds`` runs as [ZeRO] describes, by ZeRO's options: ``reduce_buffers`` are its buckets held at once when
    reduction overlaps backward, which it does, unless told otherwise, where it ``overlaps``.
    """

    stage: Stage
    name: Annotated[str, Field(max_length=40)]
    sync: Literal["step", "micro_batch"]
    states: Stage | None = None
    states_if_overlapped: Stage | None = None
    gradients_unless: tuple[Choice, ...] = ()
    pads: Literal["none", "first_dimension", "tensor", "flat", "flat_twice", "aligned"] = "none"
    reduce_buffers: Whole = 1
    overlaps: StrictBool = True
    gradients_from: Literal["load"] | None = None
    gradients_until: Literal["backward_end", "step"] = "step"
    moves: tuple[Move, ...] = ()
    holds: tuple[Holding, ...] = ()
    offload: Annotated[Any, BeforeValidator(_table)] = None

    @cached_property
    def offloading(self) -> "Offload | None":
        """What the stage can keep elsewhere than on the GPU; its class is read only where that is asked for."""
        if self.offload is None:
            return None
        from zerocalc.spec.framework_offload import Offload

        try:
            return Offload.model_validate(self.offload)
        except ValidationError as error:
            path, text = explain(error, Offload)
            raise FieldError("framework.stages", f"stage {self.stage}: offload{'.' if path else ''}{path}: {text}") from None

    @property
    def published(self) -> bool:
        """Whether the stage runs as [ZeRO] describes, by its options."""
        return not self.moves and not self.holds

    def sharded_as(self, *, overlapped: bool) -> int:
        """The stage as which the recipe's rows are sharded; ``overlapped``: reduction overlaps backward, and nothing accumulates."""
        other = self.states_if_overlapped if overlapped and self.states_if_overlapped is not None else self.states
        return self.stage if other is None else other


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
        for stage in self.stages:
            if not stage.published:  # whose rows are paid for already
                _ = stage.offloading
        return self

    def stage(self, number: int) -> FrameworkStage:
        """The behaviour at a stage; `FieldError` where the framework lacks it."""
        for stage in self.stages:
            if stage.stage == number and not isinstance(number, bool):
                return stage
        have = ", ".join(str(stage.stage) for stage in self.stages)
        raise FieldError("zero.stage", f"{shown(number)} is not a stage of {self.name}; it has {have}")
