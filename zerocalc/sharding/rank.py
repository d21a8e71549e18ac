"""What one model-parallel rank holds: its parameter counts and units, from which states, buffers
and traffic follow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from zerocalc import model as models
from zerocalc import sharding
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.model.architecture import Architecture, pipeline_stage, shapes, stage_layers
from zerocalc.model.module import Layout, layout
from zerocalc.sharding.gather_units import Unit, pipeline_split, units
from zerocalc.sharding.padding import Rule, padded
from zerocalc.spec.base import FieldError
from zerocalc.spec.job import Job
from zerocalc.spec.model import Model

if TYPE_CHECKING:
    from zerocalc.model.adapters import Adapters
    from zerocalc.model.checkpoint_bytes import Stored


@record
class Rank:
    """One rank of a job [elements]. ``shards`` is N_d; ``arch`` is ``None`` for a bare Ψ, and saves
    nothing while ``tokens`` is 0.
    """

    parameters: int
    trainable: int
    shards: int
    arch: Architecture | None
    units: tuple[Unit, ...]
    tokens: int
    split: int
    total: int
    """Parameters of the whole model."""
    total_trainable: int
    frozen: int = 0
    """Elements of this rank's frozen base, beside which its adapters are trained."""
    adapters: Adapters | None = None
    stored: Stored | None = None
    """The frozen base as it is stored, where it is quantised."""
    persistence_threshold: int = 0
    padded: int = 0
    """Elements of all parameters with what the framework rounds them up by; 0 where it rounds
    nothing.
    """
    padded_adapters: int = 0
    """Those of ``padded`` that are adapters'."""
    rule: Rule = "none"
    group: Literal["dp", "edp"] = "dp"
    """Whose gradients are reduced together: of what all hold alike, or of routed experts on ranks
    of their own.
    """
    parts: tuple[Rank, ...] = ()
    """All else and the routed experts, where those are on ranks of their own: each with shards of
    its own.
    """
    whole: Architecture | None = None
    """All of the model, where ``arch`` may be one pipeline stage's part of it."""

    def shardable(self, of: str) -> int:
        """Elements that a recipe's row divides, rounded up as the framework does; where it is not
        known what is trained, as they are.
        """
        amount = self.elements(of)
        if not self.padded:
            return amount
        if self.adapters is not None and of in ("trainable", "frozen"):
            return self.padded_adapters if of == "trainable" else self.padded - self.padded_adapters
        return self.padded if amount == self.parameters else amount

    @property
    def flat(self) -> int:
        """Elements of all that is trained with what the framework rounds them up by; 0 where it
        rounds nothing.
        """
        return self.padded_adapters if self.adapters is not None else self.padded

    @property
    def placed(self) -> bool:
        """Whether it is known where what is trained lies: everywhere, or in adapters."""
        return self.adapters is not None or self.trainable == self.parameters

    def size(self, unit: Unit, *, trained: bool = False) -> int:
        """Elements of a unit, or the ``trained`` ones of them where it is known where those lie."""
        return (
            unit.adapters
            if trained and self.adapters is not None
            else (unit.padded or unit.elements) + unit.adapters
        )

    def part(self, name: str, *, trained: bool = False) -> int:
        """Elements of a part of the parameters: all of them, one unit outside the layers, or the
        largest layer.

        ``trained``: of what is trained alone; where it is not known where that lies, the most of it
        that can lie in the part.
        """
        if trained and not self.placed:
            return min(self.trainable, self.part(name))
        if name in ("all", "trainable"):
            return self.elements("trainable" if trained else name)
        if name in ("persistent", "partitioned"):
            whole = ceil_div(sum(self.tensors("persistent")), self.split)
            return whole if name == "persistent" else (self.padded or self.parameters) - whole
        if name == "tensor":
            return ceil_div(max(self.tensors("all", trained=trained), default=0), self.split)
        return self._units(name, trained=trained)

    def _units(self, name: str, *, trained: bool) -> int:
        """All layers, or the largest unit at a place."""
        if name == "layers":
            return sum(
                [
                    unit.count * self.size(unit, trained=trained)
                    for unit in self.units
                    if unit.place == "layer"
                ]
            )
        found = [self.size(unit, trained=trained) for unit in self.units if unit.place == name]
        return max(found, default=0)

    def tensors(self, name: str, *, trained: bool = False) -> list[int]:
        """Elements of each tensor of a part of the parameters, rounded up as a shard of it is; none
        for a bare number of parameters.

        ``trained``: of the adapters alone, where there are some.
        """
        if self.arch is None:
            return []
        added = self.adapters.shapes if self.adapters is not None else []
        base = () if trained and added else self.arch.all_groups()
        every: list[tuple[int, tuple[int, ...]]] = [
            (count, shape) for count, modules in base for shape in shapes(modules)
        ]
        every += [(1, shape) for shape in added]
        chosen = [
            (n, shape)
            for n, shape in every
            if name == "all"
            or (math.prod(shape) <= self.persistence_threshold) == (name == "persistent")
        ]
        return [
            size
            for count, shape in chosen
            for size in [padded((shape,), self.rule, self.shards, 1)] * count
        ]

    def elements(self, of: str) -> int:
        """Elements of this rank that a recipe's row covers."""
        if of == "trainable":
            return self.trainable
        if of == "frozen":
            return self.frozen
        return self.parameters if of == "all" else ceil_div(self.count(of), self.split)

    def count(self, of: str) -> int:
        """Elements of the whole model that a recipe's row covers."""
        if of in ("all", "frozen"):
            return self.total - (self.total_trainable if of == "frozen" else 0)
        if of == "trainable" or self.arch is None:
            return 0 if of == "rest" else self.total_trainable
        if self.adapters is not None:  # matrices inside linear layers, all of them
            return (
                0
                if of == "rest"
                else self.adapters.factored
                if of == "factored"
                else self.total_trainable
            )
        if of == "linear":
            return self.arch.linear_elements - (self.stored.parameters if self.stored else 0)
        if of == "factored":
            return self.arch.factored_elements
        trained = min(self.total_trainable, self.arch.parameters)
        matrix = min(self.arch.matrix_elements, trained)
        return matrix if of == "matrix" else trained - matrix


Share: TypeAlias = tuple[Job, Rank]
"""What one kind of rank holds, and the job that says which pipeline stage it is on."""


def rank(job: Job) -> Rank:
    """The rank of a job's pipeline stage, or the rank that all ranks of an even split are like.

    Raises `FieldError` where more is trained than there is.
    """
    return _rank(job, *_whole(job))


def shares(job: Job) -> list[Share]:
    """A job's rank, or one for each kind of pipeline stage where it is the worst stage that
    counts.
    """
    run, arch = _whole(job)
    if arch is None or not job.by_stage:
        return [(job, _rank(job, run, arch))]
    parallel = job.parallel
    layers = stage_layers(arch, parallel, job.framework.ends_as_layers)
    kinds: dict[tuple[bool, bool, tuple[int, ...]], int] = {}
    for number, own in enumerate(layers, 1):
        kinds.setdefault(
            (number == 1, number == parallel.pp, own), number
        )  # later ones that are alike have fewer micro-batches in flight
    return [
        (own, _rank(own, run, arch)) for own in [on_stage(job, number) for number in kinds.values()]
    ]


def on_stage(job: Job, number: int) -> Job:
    """The job as one of its pipeline stages sees it, 1 the first."""
    return job.model_copy(
        update={"parallel": job.parallel.model_copy(update={"pipeline_stage": number})}
    )


def _whole(job: Job) -> tuple[Layout | None, Architecture | None]:
    run = layout(job, job.training.seq) if job.training.seq else None
    if job.model.is_bare:
        return run, None
    return run, models.build.architecture(job.model, run, job.implementation)


def _rank(job: Job, run: Layout | None, arch: Architecture | None) -> Rank:
    model, parallel = job.model, job.parallel
    total = arch.parameters if arch is not None else model.params or 0
    extra = adapters_of(model, arch) if model.lora is not None and arch is not None else None
    base = total
    if extra is not None:
        total += extra.total
    trainable = extra.total if extra is not None else model.trainable or total
    if trainable > total:  # for a bare number of parameters the model has checked this already
        raise FieldError(
            "model.trainable", f"{trainable:,} is more than the model's {total:,} parameters"
        )
    stages = pipeline_split(job)
    split = parallel.tp * stages
    whole = arch
    if arch is not None and parallel.pipeline_stage is not None:
        layers = stage_layers(arch, parallel, job.framework.ends_as_layers)
        arch = pipeline_stage(
            arch, parallel.pipeline_stage, parallel.pp, layers[parallel.pipeline_stage - 1]
        )
    own = ceil_div(base, split)
    if arch is not None and (parallel.tp > 1 or parallel.pipeline_stage is not None):
        own = _on_one(arch, parallel.tp, stages)
    trained = own if trainable == base else ceil_div(trainable, split)
    if arch is not None and job.experts_apart:
        return _in_parts(job, run, arch, whole)
    kept = (
        frozen_base(model, arch)
        if model.quantised is not None and (model.trainable or model.lora)
        else None
    )
    return Rank(
        own + trained if extra is not None else own,
        trained,
        job.shards,
        arch,
        units(job, arch, own, extra),
        run.tokens if run else 0,
        split,
        total,
        trainable,
        own if extra is not None else 0,
        extra,
        kept,
        job.zero.persistence_threshold,
        whole=whole,
    )


def _on_one(arch: Architecture, tensor_parallel: int, stages: int) -> int:
    """Elements that one of so many tensor-parallel ranks holds, on one of so many even pipeline
    stages.
    """
    before, groups, after = arch.on_rank(tensor_parallel)
    return ceil_div(before + sum([count * amount for count, amount in groups]) + after, stages)


def _in_parts(job: Job, run: Layout | None, arch: Architecture, whole: Architecture | None) -> Rank:
    """A rank whose routed experts are divided and sharded over other ranks than the rest."""
    experts_of = sharding.experts
    p, etp, stages = job.parallel, job.expert_tensor_parallel, pipeline_split(job)
    total, tokens = whole.parameters if whole else 0, run.tokens if run else 0
    parts: list[Rank] = []
    rest: tuple[Architecture, Literal["dp", "edp"], int, int] = (
        experts_of.without_experts(arch),
        "dp",
        p.tp,
        job.shards,
    )
    experts: tuple[Architecture, Literal["dp", "edp"], int, int] = (
        experts_of.experts_only(arch, p.ep),
        "edp",
        etp,
        job.expert_shards,
    )
    for part, group, split, n in (rest, experts):
        own = _on_one(part, split, stages)
        if own:
            cut = units(job, part, own, None, split)
            parts.append(
                Rank(
                    own,
                    own,
                    n,
                    part,
                    cut,
                    tokens,
                    split * stages,
                    part.parameters,
                    part.parameters,
                    group=group,
                    whole=whole,
                )
            )
    held = sum([part.parameters for part in parts])
    cut = tuple([unit for part in parts for unit in part.units])
    return Rank(
        held,
        held,
        job.shards,
        arch,
        cut,
        tokens,
        p.tp * stages,
        total,
        total,
        parts=tuple(parts),
        whole=whole,
    )


def frozen_base(model: Model, arch: Architecture | None) -> Stored:
    """A quantised base as it is stored. Raises `FieldError` where what is trained would have to be
    quantised itself.
    """
    base = models.checkpoint_bytes.stored(model, arch)
    trainable = model.trainable or 0
    if trainable > base.kept:
        raise FieldError(
            "model.trainable",
            f"{trainable:,} is more than the {base.kept:,} parameters that are not "
            "quantised; those that are stay frozen",
        )
    return base


def adapters_of(model: Model, arch: Architecture) -> Adapters | None:
    """A model's adapters; what names them is read only where there are some."""
    return models.adapters.adapters(model, arch)
