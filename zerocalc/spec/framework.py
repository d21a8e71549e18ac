"""The framework: how states are sharded, gathered and reduced, as data."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec
from zerocalc.units import Whole, shown

Stage = Annotated[int, Field(ge=0, le=3, strict=True)]


class FrameworkStage(Spec):
    """One ZeRO stage as a framework runs it.

    ``sync``: whether gradients are reduced once a step or after every micro-batch. ``reduce_buffers``: buckets held at once when reduction
    overlaps backward; one where it does not.
    """

    stage: Stage
    name: Annotated[str, Field(max_length=40)]
    sync: Literal["step", "micro_batch"]
    reduce_buffers: Whole


class Framework(Spec):
    """Behaviour that differs between frameworks; ``paper`` is what [ZeRO] describes."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    recipe: Annotated[str, Field(max_length=LONGEST_PATH)]
    implementation: Annotated[str, Field(max_length=LONGEST_PATH)]
    units_in_flight: Whole
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
