"""The framework: the facts about it that a job is checked against. What it does in a step is a
program, in zerocalc/frameworks.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc import presets
from zerocalc.quantities import Whole, shown
from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec
from zerocalc.spec.zero import OPTIONS

Stage = Annotated[int, Field(ge=0, le=3, strict=True)]
Tier = Literal["cpu", "nvme"]
OF_ITS_OWN = frozenset({"name", "title", "source", "note", "like"})
"""Fields that a framework like another one always has for itself."""


WHOLE = frozenset({"name", "source", "recipe", "implementation", "stages"})
"""Fields with which a framework needs no other one's: what a saved job has."""


class Offloading(Spec):
    """The tiers on which a stage can keep states."""

    optimizer: tuple[Tier, ...] = ()
    """Where the optimizer states, with sharded gradients, may be."""
    params: tuple[Tier, ...] = ()
    """Where the parameters may be."""
    together: StrictBool = False
    """Whether one goes only with the other, to the same tier."""

    def takes(self, optimizer: str, params: str) -> bool:
        """Whether the optimizer and the parameters can be there; ``none`` is the GPU."""
        if self.together and optimizer != params:
            return False
        return (optimizer == "none" or optimizer in self.optimizer) and (
            params == "none" or params in self.params
        )


class FrameworkStage(Spec):
    """A ZeRO stage as a framework offers it."""

    stage: Stage
    """0 (nothing sharded) to 3 (parameters too)."""
    name: Annotated[str, Field(max_length=40)]
    """ddp, zero-1, zero-2 or zero-3."""
    meaning: Annotated[str, Field(max_length=200)] | None = None
    """What the framework calls the stage, and how that differs from ZeRO's."""
    sync: Literal["step", "micro_batch"]
    """How often gradients are reduced: once a step, or after every micro-batch."""
    overlaps: StrictBool = True
    """Whether communication overlaps compute unless the job says otherwise."""
    copies: StrictBool = False
    """Whether there may be several copies of the shards, kept alike (hybrid sharding)."""
    offload: Offloading | None = None
    """Where states may be instead of on the GPU; nowhere else for ``None``."""


class Framework(Spec):
    """What differs between frameworks. ``paper`` is ZeRO as published.

    A framework of your own is like a known one, with some of its fields changed:
    ``{"name": "mine", "like": "fsdp2", "source": "…", "wraps": "ends"}``.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """What it is called."""
    like: Annotated[str, Field(min_length=1, max_length=60)]
    """The framework whose program it runs: itself unless told otherwise."""
    title: Annotated[str, Field(max_length=200)] = ""
    """What it is, in words."""
    source: Annotated[str, Field(max_length=2000)]
    """Where its behaviour was read or measured."""
    recipe: Annotated[str, Field(max_length=LONGEST_PATH)]
    """The recipe that a job takes unless it names another."""
    implementation: Annotated[str, Field(max_length=LONGEST_PATH)]
    """The layer implementation that a job takes unless it names another."""
    units_in_flight: Whole = 1
    """Layers that are gathered at once at stage 3 (of ZeRO as published)."""
    wraps: Literal["ends", "root"] = "ends"
    """What is outside the layers: one unit (``root``), or embedding and head one each."""
    adapters: Literal["layer", "each"] = "layer"
    """Whether adapters are in their layer's unit, or each matrix is a unit of its own."""
    casts: StrictBool = False
    """Whether all parameters are cast to the compute dtype, adapters too."""
    options: tuple[str, ...] | None = None
    """The fields of ``zero`` that it offers; all of them for ``None``."""
    all_reduce_at: tuple[Stage, ...] = ()
    """Stages of which ``grad_sync = all-reduce`` is a variant, where that is only some."""
    ends_as_layers: Annotated[int, Field(ge=0, le=1, strict=True)] = 0
    """As how many layers embedding and head count each when layers are assigned to pipeline
    stages.
    """
    uneven_stages: StrictBool = True
    """Whether layers that do not divide evenly are assigned to pipeline stages at all."""
    pipelines_defer: StrictBool = False
    """Whether pipelines reduce gradients, and gather weights that stay, once a step."""
    vocab_multiple: Whole | None = None
    """The vocabulary is padded to a multiple of this times tp."""
    experts_at: tuple[Stage, ...] = ()
    """Stages at which routed experts can be on ranks of their own."""
    experts_divided: StrictBool = True
    """Whether those are divided as tensor parallelism divides the rest, unless told otherwise."""
    context: Literal["ring", "all_gather", "all_to_all"] = "ring"
    """How context-parallel ranks get each other's keys and values: from neighbour to neighbour, all
    at once, or each takes some heads of all tokens.
    """
    splits: tuple[Literal["tp", "sequence_parallel"], ...] | None = None
    """The ways in which it divides a layer among GPUs, all for ``None``; others are counted where
    they are asked for, and never suggested.
    """
    note: Annotated[str, Field(max_length=500)] | None = None
    """An assumption to print with every answer."""
    stages: Annotated[tuple[FrameworkStage, ...], Field(min_length=1, max_length=4)]
    """The stages that it offers, in rising order."""

    @model_validator(mode="before")
    @classmethod
    def _as_another(cls, data: Any) -> Any:
        """The fields of the framework that this one is like, with its own over them."""
        if not isinstance(data, dict):
            return data
        like = data.get("like")
        if not isinstance(like, str) or data.keys() >= WHOLE:
            return {"like": data.get("name"), **data}
        for key in ("name", "source"):
            if key not in data:
                raise FieldError(f"framework.{key}", f"is missing: say it of one like {like}")
        if not presets.is_preset("frameworks", like):
            raise FieldError("framework.like", _known(like))
        whole = presets.load("frameworks", like)
        for key in data:
            if key in cls.model_fields and key not in whole and key not in OF_ITS_OWN:
                raise FieldError(f"framework.{key}", f"{like} has no such choice")
        return {**whole, **data}

    @model_validator(mode="after")
    def _check(self) -> Self:
        numbers = [stage.stage for stage in self.stages]
        if numbers != sorted(set(numbers)):
            raise FieldError("framework.stages", "are not in rising order, each once")
        if not presets.is_preset("frameworks", self.like):
            raise FieldError("framework.like", _known(self.like))
        for option in self.options or ():
            if option not in OPTIONS:
                near = presets.nearest(option, OPTIONS)
                raise FieldError("framework.options", f"{shown(option)} is no field of zero{near}")
        return self

    def offers(self, way: str) -> bool:
        """Whether it divides a layer in that way."""
        return self.splits is None or way in self.splits

    def stage(self, number: int) -> FrameworkStage:
        """A stage's facts; `FieldError` where the framework lacks it."""
        for stage in self.stages:
            if stage.stage == number and not isinstance(number, bool):
                return stage
        have = ", ".join(str(stage.stage) for stage in self.stages)
        text = f"{shown(number)} is not a stage of {self.name}; it has {have}"
        raise FieldError("zero.stage", text)


def _known(like: str) -> str:
    known = ", ".join(presets.names("frameworks"))
    return f"{shown(like)} is no framework to be like; known are {known}"
