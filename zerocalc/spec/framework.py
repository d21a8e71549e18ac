"""The framework: how states are sharded, gathered and reduced, as data."""

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, ValidationError, model_validator

from zerocalc import spec as specs
from zerocalc.quantities import Whole, shown
from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec, explain

Stage = Annotated[int, Field(ge=0, le=3, strict=True)]
Moment = Literal["load", "forward", "loss", "backward_start", "backward_end", "step"]
Choice = Literal[
    "grad_sync",
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


def _rows(value: Any, of: str) -> Any:
    """A stage's rows, validated on their own: the published stages have none, and a start should
    not pay for their classes.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{shown(value)} is not a list")
    if not value:
        return ()
    spec: type[Spec] = getattr(specs.framework_rows, of)
    out = []
    for number, row in enumerate(value):
        try:
            out.append(spec.model_validate(row))
        except ValidationError as error:
            path, text = explain(error, spec)
            place = f"{number}.{path}" if path else f"{number}"
            raise ValueError(f"{shown(place)}: {text}") from None
    return tuple(out)


def _moves(value: Any) -> Any:
    return _rows(value, "Move")


def _holds(value: Any) -> Any:
    return _rows(value, "Holding")


class Unread(dict[str, Any]):
    """A table that is validated only where it is asked for; like all of a job, hashable by
    value.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


def _table(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a table of fields")
    return None if value is None else Unread(value)


if TYPE_CHECKING:
    Moves = tuple[specs.framework_rows.Move, ...]
    Holds = tuple[specs.framework_rows.Holding, ...]
else:
    Moves = Annotated[Any, BeforeValidator(_moves)]
    Holds = Annotated[Any, BeforeValidator(_holds)]


class FrameworkStage(Spec):
    """One ZeRO stage as a framework runs it; ``meaning`` is what the framework calls it, and how
    that differs.

    ``sync``: whether gradients are reduced once a step or after every micro-batch. ``states``: the
    stage as which the recipe's rows are sharded, where that is another one,
    ``states_if_overlapped`` where reduction overlaps backward and nothing accumulates.
    ``gradients_unless``: options in whose place rows of the stage's own stand for gradients.
    ``pads``: how shards are rounded up. ``gradients_from``: where gradients lie in a buffer for
    good, the moment from which there is one. ``gradients_until``: the last moment of gradients.
    ``waiting_dtype``: in which sharded gradients are kept whole while their reduction is deferred,
    if not in their own dtype. ``weights_first``: linear layers give the gradient of their weight
    before that of their bias. ``offload``: what it can keep elsewhere than on the GPU
    (framework_offload.py). A stage without ``moves`` and ``holds`` runs as [ZeRO] describes, by
    ZeRO's options: ``reduce_buffers`` are its buckets held at once when reduction overlaps
    backward, which it does, unless told otherwise, where it ``overlaps``.
    """

    stage: Stage
    name: Annotated[str, Field(max_length=40)]
    meaning: Annotated[str, Field(max_length=200)] | None = None
    sync: Literal["step", "micro_batch"]
    states: Stage | None = None
    states_if_overlapped: Stage | None = None
    gradients_unless: tuple[Choice, ...] = ()
    pads: Literal["none", "first_dimension", "tensor", "flat", "flat_twice", "aligned"] = "none"
    reduce_buffers: Whole = 1
    overlaps: StrictBool = True
    gradients_from: Literal["load"] | None = None
    gradients_until: Literal["backward_end", "step"] = "step"
    waiting_dtype: Literal["gather", "reduce"] | None = None
    weights_first: StrictBool = False
    moves: Moves = ()
    holds: Holds = ()
    offload: Annotated[Any, BeforeValidator(_table)] = None

    @cached_property
    def offloading(self) -> "specs.framework_offload.Offload | None":
        """What the stage can keep elsewhere than on the GPU; its class is read only where that is
        asked for.
        """
        if self.offload is None:
            return None
        try:
            return specs.framework_offload.Offload.model_validate(self.offload)
        except ValidationError as error:
            path, text = explain(error, specs.framework_offload.Offload)
            raise FieldError(
                "framework.stages",
                f"stage {self.stage}: offload{'.' if path else ''}{path}: {text}",
            ) from None

    @property
    def published(self) -> bool:
        """Whether the stage runs as [ZeRO] describes, by its options."""
        return not self.moves and not self.holds

    @property
    def copies_alike(self) -> bool:
        """Whether states may be sharded within groups that each hold a copy: whether there is
        something that keeps the copies alike.
        """
        return bool(self.stage) and (
            self.published or any(move.over == "replicas" for move in self.moves)
        )

    def sharded_as(self, *, overlapped: bool) -> int:
        """The stage as which the recipe's rows are sharded; ``overlapped``: reduction overlaps
        backward, and nothing accumulates.
        """
        other = (
            self.states_if_overlapped
            if overlapped and self.states_if_overlapped is not None
            else self.states
        )
        return self.stage if other is None else other


class Framework(Spec):
    """Behaviour that differs between frameworks; ``paper`` is what [ZeRO] describes.

    ``wraps``: whether what stands outside the layers is one unit (``root``) or embedding and head
    are one each (``ends``). ``adapters``: whether they are in their layers' units, or ``each``
    matrix is one of its own. ``casts``: whether it casts all parameters to compute's dtype,
    adapters too. ``options``: those of ZeRO's choices that mean something to it, all if none are
    named. ``splits``: the ways in which it divides a layer among GPUs, all if none are named;
    others are counted where they are asked for, and never suggested. ``ends_as_layers``: as how
    many layers the embedding counts, and the head, when layers are dealt to pipeline stages;
    ``uneven_stages``: whether layers that do not divide are dealt at all, to the first ones;
    ``pipelines_defer``: whether pipelines reduce gradients, and gather weights that stay, once a
    step. ``vocab_multiple``: it pads the vocabulary to a multiple of this and tp. ``experts_at``:
    the stages beside which routed experts can be dealt to ranks of their own; ``experts_divided``:
    whether those are then divided as tensor parallelism divides the rest, unless told otherwise.
    ``context``: how context-parallel ranks come by each other's keys and values: from neighbour to
    neighbour (``ring``), all at once (``all_gather``, gradients from neighbour to neighbour), or
    each takes some heads of all tokens (``all_to_all``).
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    recipe: Annotated[str, Field(max_length=LONGEST_PATH)]
    implementation: Annotated[str, Field(max_length=LONGEST_PATH)]
    units_in_flight: Whole
    wraps: Literal["ends", "root"] = "ends"
    adapters: Literal["layer", "each"] = "layer"
    casts: StrictBool = False
    options: tuple[str, ...] | None = None
    ends_as_layers: Annotated[int, Field(ge=0, le=1, strict=True)] = 0
    uneven_stages: StrictBool = True
    pipelines_defer: StrictBool = False
    vocab_multiple: Whole | None = None
    experts_at: tuple[Stage, ...] = ()
    experts_divided: StrictBool = True
    context: Literal["ring", "all_gather", "all_to_all"] = "ring"
    splits: tuple[Literal["tp", "sequence_parallel"], ...] | None = None
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

    def offers(self, way: str) -> bool:
        """Whether it divides a layer in that way."""
        return self.splits is None or way in self.splits

    def stage(self, number: int) -> FrameworkStage:
        """The behaviour at a stage; `FieldError` where the framework lacks it."""
        for stage in self.stages:
            if stage.stage == number and not isinstance(number, bool):
                return stage
        have = ", ".join(str(stage.stage) for stage in self.stages)
        raise FieldError(
            "zero.stage", f"{shown(number)} is not a stage of {self.name}; it has {have}"
        )
