"""The job: everything that a user describes, and what follows from it."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import Spec, from_preset
from zerocalc.spec.checks import check_job
from zerocalc.spec.cluster import Cluster
from zerocalc.spec.defaults import with_defaults
from zerocalc.spec.framework import Framework, FrameworkStage
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.loss import Loss
from zerocalc.spec.model import Model
from zerocalc.spec.parallel import Parallel
from zerocalc.spec.recipe import FloatDtype, Recipe
from zerocalc.spec.training import Training
from zerocalc.spec.zero import Zero

LONGEST_NOTE, MOST_NOTES = 4000, 100


class Job(Spec):
    """A training job: ``Job(model="llama-3-8b", cluster=Cluster(gpus=8, gpu="h100-80g"))``.

    A string stands for the preset of that name or for a TOML file; the dump holds what it stands
    for.
    """

    model: Annotated[Model, from_preset("models")]
    """What is trained: an architecture, or a number of parameters."""
    cluster: Cluster
    """The GPUs and nodes."""
    framework: Annotated[Framework, from_preset("frameworks")]
    """Whose program of a step is counted. Default: ``paper``, ZeRO as published."""
    recipe: Annotated[Recipe, from_preset("recipes")]
    """Model states and dtypes. Default: the framework's."""
    implementation: Annotated[Implementation, from_preset("implementations")]
    """Whose layers are run, which decides the saved activations. Default: the framework's."""
    loss: Annotated[Loss, from_preset("losses")]
    """How the loss is computed, which decides the memory of the logits. Default: the
    implementation's.
    """
    training: Training = Field(default_factory=Training)
    """Batch, sequence length, activation checkpointing. Default: each field's default."""
    parallel: Parallel = Field(default_factory=Parallel)
    """Degrees of model parallelism. Default: data parallelism only."""
    zero: Zero = Field(default_factory=Zero)
    """ZeRO stages and options. Default: every stage that the framework has, each option's default.
    """
    config_notes: Annotated[
        tuple[Annotated[str, Field(max_length=LONGEST_NOTE)], ...], Field(max_length=MOST_NOTES)
    ] = ()
    """Notes on the configuration file from which the job was read, printed with every answer.
    Default: none.
    """

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """A table with the parts filled in that it does not have."""
        return with_defaults(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise `FieldError` if parts contradict each other."""
        check_job(self)
        return self

    # Degrees.

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one copy of the model together."""
        return self.parallel.tp * self.parallel.pp * self.parallel.cp

    @property
    def dp(self) -> int:
        """The data-parallel degree: batches processed at the same time."""
        return self.cluster.gpus // self.model_parallel

    @property
    def tokens_on_rank(self) -> int:
        """Tokens on one context-parallel rank; 0 if the sequence length is unknown."""
        return -(-(self.training.seq or 0) // self.parallel.cp)

    @property
    def gradient_group(self) -> int:
        """Ranks that hold the same parameters, over which gradients are reduced.

        Context-parallel ranks are among them: they see other tokens (so the groups of Megatron,
        torchtitan and DeepSpeed-Ulysses, arXiv 2309.14509; [ZeRO] has no context parallelism).
        """
        return self.dp * self.parallel.cp

    @property
    def shards(self) -> int:
        """N_d: the ranks over which states are sharded, and gradients reduced first."""
        return self.zero.shard_group or self.gradient_group

    @property
    def replicas(self) -> int:
        """Copies of the sharded states, under hybrid sharding; 1 without it."""
        return self.gradient_group // self.shards

    @property
    def expert_tensor_parallel(self) -> int:
        """Ranks that divide each routed expert."""
        p = self.parallel
        if p.etp is not None:
            return p.etp
        return p.tp if p.ep == 1 or self.framework.experts_divided else 1

    @property
    def experts_apart(self) -> bool:
        """Whether routed experts are divided over other ranks than the rest of the model."""
        p = self.parallel
        return p.ep > 1 or (p.etp is not None and p.etp != p.tp)

    @property
    def expert_ranks(self) -> int:
        """GPUs that hold one copy of all routed experts together."""
        return self.parallel.pp * self.parallel.ep * self.expert_tensor_parallel

    @property
    def expert_shards(self) -> int:
        """The ranks over which gradients of routed experts are reduced and their states sharded."""
        return self.cluster.gpus // self.expert_ranks

    # Pipeline stages.

    @property
    def cut_by_stage(self) -> bool:
        """Whether the layers of each pipeline stage are known: of an architecture that is trained
        as a whole.
        """
        m = self.model
        return not m.is_bare and m.lora is None and m.trainable is None

    @property
    def by_stage(self) -> bool:
        """Whether the answer is for the pipeline stage that needs most memory: none is named, and
        the layers of each are known.
        """
        return self.parallel.pp > 1 and self.parallel.pipeline_stage is None and self.cut_by_stage

    @property
    def even_share(self) -> bool:
        """Whether the answer is for an even share of the pipeline: none is named, and the layers of
        each are unknown.
        """
        return (
            self.parallel.pp > 1 and self.parallel.pipeline_stage is None and not self.cut_by_stage
        )

    # ZeRO stages.

    @property
    def stages(self) -> tuple[int, ...]:
        """The ZeRO stages to estimate: those named, or all of the framework that support the job's
        offloading and expert parallelism.
        """
        if self.zero.stage:
            return self.zero.stage
        every = tuple(
            stage.stage
            for stage in self.framework.stages
            if not self.zero.offloads or self.can_offload(stage)
        )
        return (
            tuple(s for s in every if s in self.framework.experts_at)
            if self.experts_apart
            else every
        )

    def can_offload(self, stage: FrameworkStage) -> bool:
        """Whether a stage supports the job's offloading."""
        return stage.offload is not None and stage.offload.takes(
            self.zero.offload_optimizer, self.zero.offload_params
        )

    def overlaps(self, stage: int) -> bool:
        """Whether communication overlaps compute at a ZeRO stage: as the job says, or as the
        framework does.

        Raises `FieldError` if the framework lacks the stage.
        """
        chosen = self.zero.overlap_comm
        return self.framework.stage(stage).overlaps if chosen is None else chosen

    # Dtypes.

    @property
    def adapter_dtype(self) -> FloatDtype | None:
        """The dtype of adapters: their own, or the compute dtype if the framework casts all
        parameters; ``None`` without adapters.
        """
        lora, compute = self.model.lora, self.recipe.compute
        if lora is None:
            return None
        cast = self.framework.casts and not self.recipe.autocast and compute != "fp32"
        return compute if cast else lora.dtype

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe of what is trained: of the adapters alone, if there are any."""
        dtype = self.adapter_dtype
        return self.recipe if dtype is None else self.recipe.for_adapters(dtype)

    @property
    def reduce_dtype(self) -> str:
        """The dtype in which gradients are reduced."""
        return self.zero.reduce_dtype or self.trained_recipe.gradient_dtype

    @property
    def gather_dtype(self) -> str:
        """The dtype in which sharded parameters are all-gathered; a frozen base is stored in the
        compute dtype already.
        """
        return self.recipe.gather if self.model.lora is None else self.recipe.compute
