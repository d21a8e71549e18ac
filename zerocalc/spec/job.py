"""The job: all that a user describes, and the checks that cross its parts."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zerocalc.quantities import parse_whole
from zerocalc.spec.base import FieldError, Spec, from_preset
from zerocalc.spec.cluster import Cluster, Parallel
from zerocalc.spec.framework import Framework, FrameworkStage
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.loss import Loss
from zerocalc.spec.model import DEFAULT_KIND, GPT2_POSITIONS, Model, only_given, positions_for
from zerocalc.spec.recipe import FloatDtype, Recipe
from zerocalc.spec.training import Training
from zerocalc.spec.zero import OPTIONS, Zero

DEFAULT_FRAMEWORK = "paper"
LONGEST_NOTE, MOST_NOTES = 4000, 100
DEFAULT_OF = (("recipe", "framework"), ("implementation", "framework"), ("loss", "implementation"))
"""What a job takes from another part of it unless told otherwise: the framework names a recipe and
an implementation, that one its loss.
"""


class Job(Spec):
    """A training job: ``Job(model="llama-3-8b", cluster=Cluster(gpus=8, gpu="h100-80g"))``.

    A string stands for the preset of that name or for a TOML file; the dump holds what it stands
    for.
    """

    model: Annotated[Model, from_preset("models")]
    cluster: Cluster
    framework: Annotated[Framework, from_preset("frameworks")]
    recipe: Annotated[Recipe, from_preset("recipes")]
    implementation: Annotated[Implementation, from_preset("implementations")]
    loss: Annotated[Loss, from_preset("losses")]
    training: Training = Field(default_factory=Training)
    parallel: Parallel = Field(default_factory=Parallel)
    zero: Zero = Field(default_factory=Zero)
    config_notes: Annotated[
        tuple[Annotated[str, Field(max_length=LONGEST_NOTE)], ...], Field(max_length=MOST_NOTES)
    ] = ()
    """What the configuration that a job was read from says beside it, in words; kept with the job
    so that a saved one says it again.
    """

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """The paper's framework unless another is named, and its recipe, implementation and loss
        unless they are.
        """
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("model") is None:
            data["model"] = {}  # so that Model says what is missing
        if data.get("cluster") is None:
            data["cluster"] = {}
        for part in ("training", "parallel", "zero"):
            data.setdefault(
                part,
                {},
                # validated with the rest: a default that is a model would need a validator of its
                # own
            )
        data["model"] = _with_positions(data["model"], data.get("training"))
        data.setdefault("framework", DEFAULT_FRAMEWORK)
        for part, owner in DEFAULT_OF:
            if data.get(part) is None:
                default = _named_by(data, owner, part)
                if default is not None:
                    data[part] = default
        return data

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one copy of the model together."""
        return self.parallel.tp * self.parallel.pp * self.parallel.cp

    @property
    def dp(self) -> int:
        """The data-parallel degree: how many batches of their own the GPUs work on."""
        return self.cluster.gpus // self.model_parallel

    @property
    def tokens_on_rank(self) -> int:
        """Tokens of a sequence on one context-parallel rank; 0 where sequences are of no known
        length.
        """
        return -(-(self.training.seq or 0) // self.parallel.cp)

    @property
    def shards(self) -> int:
        """N_d: the ranks over which gradients are reduced and states sharded.

        Context-parallel ranks hold the same parameters and see other tokens, so that they belong to
        it (Megatron's and torchtitan's groups for gradients and shards, DeepSpeed-Ulysses' too:
        arXiv 2309.14509); [ZeRO] has no context parallelism.
        """
        return self.zero.shard_group or self.dp * self.parallel.cp

    @property
    def defers(self) -> bool:
        """Whether gradients wait until the last micro-batch of a step before they are reduced."""
        return self.zero.defer_grad_sync or (
            self.framework.pipelines_defer and self.parallel.pp > 1
        )

    def reductions(self, sync: str) -> int:
        """How often one step reduces gradients, which a stage does once a ``step`` or once a
        ``micro_batch`` unless they wait.
        """
        return 1 if sync == "step" or self.defers else self.training.accumulation

    @property
    def by_stage(self) -> bool:
        """Whether the answer is of the pipeline stage that needs most: an architecture that is
        trained as a whole, and no stage named.
        """
        return self.parallel.pp > 1 and self.parallel.pipeline_stage is None and self.cut_by_stage

    @property
    def even_share(self) -> bool:
        """Whether what is told is an even share of a pipeline's stages."""
        return (
            self.parallel.pp > 1 and self.parallel.pipeline_stage is None and not self.cut_by_stage
        )

    @property
    def cut_by_stage(self) -> bool:
        """Whether it is known what one stage of a pipeline holds."""
        m = self.model
        return (
            not m.is_bare and m.lora is None and m.trainable is None
        )  # a quantised model that is all trained is trained as before

    @property
    def expert_tensor_parallel(self) -> int:
        """Ranks that divide each routed expert."""
        told, p = self.parallel.etp, self.parallel
        return (
            told if told is not None else p.tp if p.ep == 1 or self.framework.experts_divided else 1
        )

    @property
    def experts_apart(self) -> bool:
        """Whether routed experts are divided over other ranks than the rest of the model."""
        p = self.parallel
        return p.ep > 1 or (p.etp is not None and p.etp != p.tp)

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold all routed experts of a pipeline stage, and the stages of that: what
        their copies or shards divide the GPUs by.
        """
        return self.parallel.pp * self.parallel.ep * self.expert_tensor_parallel

    @property
    def expert_shards(self) -> int:
        """The ranks over which gradients of routed experts are reduced and their states sharded."""
        return self.cluster.gpus // self.expert_ranks

    def dtype_of(self, word: str) -> str:
        """The dtype that a framework's word stands for: gather, reduce, compute, weights (those
        that are trained), or a dtype itself.
        """
        if word == "gather":
            return self.gather_dtype
        if word == "reduce":
            return self.reduce_dtype
        if word == "weights":
            return next(
                row.dtype
                for row in self.trained_recipe.rows
                if row.kind == "weights" and row.of != "frozen"
            )
        return self.recipe.compute if word == "compute" else word

    def overlaps(self, stage: int) -> bool:
        """Whether communication runs beside computing: as told, or as the framework does."""
        told = self.zero.overlap_comm
        return self.framework.stage(stage).overlaps if told is None else told

    @property
    def replicas(self) -> int:
        """Copies of the sharded states, under hybrid sharding; 1 without it."""
        return self.dp * self.parallel.cp // self.shards

    @property
    def quantises(self) -> bool:
        """Whether weights or gradients are sent quantised."""
        return self.zero.quantised_weights or self.zero.quantised_gradients

    def reducing(self, stage: int) -> int:
        """The ranks over which a stage reduces gradients first: those that share one copy of the
        states; all of them where nothing is sharded.
        """
        return self.shards if stage else self.dp * self.parallel.cp

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages asked for: all that the framework has, and that can do what is asked of them,
        unless some were named.
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
        """Whether a stage can keep elsewhere than on the GPU what is to be kept there."""
        return stage.offload is not None and stage.offload.takes(
            self.zero.offload_optimizer, self.zero.offload_params
        )

    @property
    def reduce_dtype(self) -> str:
        """The dtype in which gradients are reduced."""
        return self.zero.reduce_dtype or self.trained_recipe.gradient_dtype

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe as it holds for what is trained: the adapters alone where there are some."""
        dtype = self.adapter_dtype
        return self.recipe if dtype is None else self.recipe.for_adapters(dtype)

    @property
    def adapter_dtype(self) -> FloatDtype | None:
        """The dtype of adapters: their own, unless the framework casts all parameters to compute's;
        ``None`` without adapters.
        """
        lora, compute = self.model.lora, self.recipe.compute
        if lora is None:
            return None
        return (
            compute
            if self.framework.casts and not self.recipe.autocast and compute != "fp32"
            else lora.dtype
        )

    @property
    def gather_dtype(self) -> str:
        """The dtype in which a sharded unit's weights are gathered; a frozen base's are held in the
        compute dtype already.
        """
        return self.recipe.gather if self.model.lora is None else self.recipe.compute

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise `FieldError` where parts contradict each other, as those of a changed copy may."""
        if self.zero.offloads:
            from zerocalc.spec.offload import check_offload  # most jobs keep all on the GPU

            check_offload(self)
        self._check_degrees()
        self._check_stages()
        self._check_activations()
        if self.model.is_bare and any(row.of == "factored" for row in self.recipe.rows):
            raise FieldError(
                "recipe",
                f"{self.recipe.name} keeps a sum per row and column of each matrix: give "
                "the architecture, not just params",
            )

    def _check_degrees(self) -> None:
        p, gpus = self.parallel, self.cluster.gpus
        for name, degree in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp)):
            if degree > gpus:
                raise FieldError(f"parallel.{name}", f"{degree} is more than the {gpus} GPUs")
        if gpus % self.model_parallel:
            lower = gpus - gpus % self.model_parallel
            nearby = (
                f"{lower} or {lower + self.model_parallel}" if lower else f"{self.model_parallel}"
            )
            raise FieldError(
                "cluster.gpus",
                f"{gpus} is not divisible by tp·pp·cp = {p.tp}·{p.pp}·{p.cp} = "
                f"{self.model_parallel}; {nearby} would be",
            )
        m = self.model
        if undivided := m.undivided(p.tp, self.expert_tensor_parallel):
            raise FieldError("parallel.tp", f"{p.tp} does not divide {undivided}")
        if p.sequence_parallel and self.tokens_on_rank % p.tp:
            raise FieldError(
                "parallel.sequence_parallel",
                f"tp = {p.tp} does not divide the {self.tokens_on_rank} tokens of a "
                "sequence on a rank",
            )
        if m.layer_count and p.pp > m.layer_count:
            raise FieldError(
                "parallel.pp", f"{p.pp} stages are more than the {m.layer_count} layers"
            )
        if p.pp > 1 or p.interleave > 1:
            from zerocalc.spec.pipelines import check_pipeline  # most jobs have none

            check_pipeline(self)
        if p.pipeline_stage is not None and not self.cut_by_stage:
            raise FieldError(
                "parallel.pipeline_stage",
                "needs an architecture that is trained as a whole: no bare count, no "
                "adapters, no frozen base",
            )
        if p.ep > 1 or p.etp is not None:
            from zerocalc.spec.experts import check_experts  # most models have none

            check_experts(self)
        if p.cp > 1:
            self._check_sequence(p.cp)

    def _check_sequence(self, parts: int) -> None:
        seq = self.training.seq
        if not seq:
            raise FieldError(
                "parallel.cp", f"{parts} splits sequences: say how long they are (training.seq)"
            )
        if parts > seq:
            raise FieldError("parallel.cp", f"{parts} is more than the {seq} tokens of a sequence")
        if seq % parts:
            raise FieldError(
                "parallel.cp", f"{parts} does not divide the {seq} tokens of a sequence"
            )

    def _check_stages(self) -> None:
        z = self.zero
        self._check_options()
        self._check_time()
        for stage in z.stage or ():
            self.framework.stage(stage)
        variants = self.framework.all_reduce_at
        if z.grad_sync == "all-reduce" and variants and not set(variants) & set(self.stages):
            raise FieldError(
                "zero.grad_sync",
                "all-reduce is a variant of stage 1, which is not among the stages asked for",
            )
        if z.gather == "broadcast" and 3 not in self.stages:
            raise FieldError(
                "zero.gather",
                "broadcast is a variant of stage 3, which is not among the stages asked for",
            )
        each = [stage.stage for stage in self.framework.stages if stage.sync == "micro_batch"]
        if z.defer_grad_sync and not set(each) & set(self.stages):
            only = f"is for stages {', '.join(map(str, each))}; " if each else ""
            raise FieldError("zero.defer_grad_sync", f"{only}the others reduce once a step anyway")
        if z.secondary_group and 3 not in self.stages:
            raise FieldError(
                "zero.secondary_group",
                "is a second copy of the weights that stage 3 shards, and stage 3 is not asked for",
            )
        if z.quantised_weights and 3 not in self.stages:
            raise FieldError(
                "zero.quantised_weights",
                "is how stage 3 gathers weights, and stage 3 is not asked for",
            )
        if z.reduce_to_owner and not {1, 2} & set(self.stages):
            raise FieldError(
                "zero.reduce_to_owner", "is for stages 1 and 2, none of which is asked for"
            )
        if z.gather == "broadcast" and self.model.is_bare and self.model.blocks is None:
            raise FieldError(
                "zero.gather",
                "broadcast sends block by block: say how many blocks the parameters are "
                "cut into (model.blocks)",
            )

    def _check_time(self) -> None:
        if self.training.kernel_efficiency == 0 or self.cluster.kernel_efficiency[0] == 0:
            raise FieldError(
                "training.kernel_efficiency",
                "0 of the peak computes nothing: a share above 0 and below 1 is wanted, "
                "such as 0.5",
            )

    def _check_options(self) -> None:
        z, known = self.zero, self.framework.options
        for name in OPTIONS:
            if (
                known is not None
                and name not in known
                and getattr(z, name) != type(z).model_fields[name].default
            ):
                raise FieldError(
                    f"zero.{name}",
                    f"means nothing to {self.framework.name}, which has "
                    f"{', '.join(known) or 'no such choice'}",
                )
        every = self.dp * self.parallel.cp
        if z.shard_group and every % z.shard_group:
            raise FieldError(
                "zero.shard_group",
                f"{z.shard_group} does not divide the {every} ranks that hold the same parameters",
            )
        if z.secondary_group and self.shards % z.secondary_group:
            raise FieldError(
                "zero.secondary_group",
                f"{z.secondary_group} does not divide the {self.shards} ranks over which "
                "weights are sharded",
            )
        if z.quantised_gradients and 3 not in self.stages:
            raise FieldError(
                "zero.quantised_gradients",
                "is how stage 3 reduces gradients, and stage 3 is not asked for",
            )
        if z.quantised_gradients and (
            self.model_parallel > 1 or self.shards % self.cluster.gpus_per_node
        ):
            raise FieldError(
                "zero.quantised_gradients",
                f"needs whole nodes of {self.cluster.gpus_per_node} ranks that shard the "
                "same parameters",
            )
        if z.shard_group and z.quantised_gradients:
            raise FieldError(
                "zero.shard_group",
                "and quantised_gradients, which reduces over all ranks in two hops, "
                "exclude each other",
            )
        if self.experts_apart and (z.secondary_group or self.quantises):
            raise FieldError(
                "parallel.ep",
                "with secondary shards or quantised traffic is not modelled: nothing says "
                "over whom experts' are shared",
            )
        for stage in self.stages if z.shard_group and z.shard_group < every else ():
            if not self.framework.stage(stage).copies and (stage or len(self.stages) == 1):
                raise FieldError(
                    "zero.shard_group",
                    f"{self.framework.name} keeps no copies of shards at stage "
                    f"{stage}{self._with_copies()}",
                )

    def _with_copies(self) -> str:
        able = [str(stage.stage) for stage in self.framework.stages if stage.copies]
        return f"; it does at {', '.join(able)}: name one with zero.stage" if able else ""

    def _check_activations(self) -> None:
        z, t, p, m = self.zero, self.training, self.parallel, self.model
        if t.recompute_every > 1 and t.recompute not in ("full", "operators"):
            raise FieldError(
                "training.recompute_every",
                f"recomputes one layer in {t.recompute_every}: it needs recompute full or "
                "operators",
            )
        if z.offload_activations != "none" and t.recompute != "full":
            raise FieldError(
                "zero.offload_activations",
                "moves stored checkpoints to the host: it needs recompute full",
            )
        if z.partition_activations:
            if p.tp == 1:
                raise FieldError(
                    "zero.partition_activations",
                    "splits what tensor-parallel ranks hold alike; with tp = 1 there is "
                    "nothing (data-parallel ranks hold different data)",
                )
            if t.recompute != "full":
                raise FieldError(
                    "zero.partition_activations",
                    "splits stored checkpoints (P_a): it needs recompute full",
                )
            if p.sequence_parallel:
                raise FieldError(
                    "zero.partition_activations",
                    "contradicts sequence_parallel, which splits the checkpoints already",
                )
        if (
            t.seq
            and t.attention != "eager"
            and self.implementation.softmax == "as_written"
            and m.stack is not None
            and m.stack.only_eager
        ):
            raise FieldError(
                "training.attention",
                f"{t.attention}: of the class of {m.family or 'this model'} only unfused "
                "attention is known: --attention eager counts it",
            )
        if t.seq and m.longest and t.seq > m.longest:
            raise FieldError(
                "training.seq", f"{t.seq} is more than the model's {m.longest} learned positions"
            )


def _named_by(data: dict[str, Any], owner: str, part: str) -> Any:
    """What the framework or the implementation names for a part of the job that was not given."""
    described = data.get(owner)
    if isinstance(described, str):
        from zerocalc import presets

        described = data[owner] = presets.load(f"{owner}s", described)
    if not isinstance(described, dict):
        return getattr(described, part, None)
    like = described.get("like")
    if part in described or not isinstance(like, str):
        return described.get(part)
    return _named_by({owner: like}, owner, part)  # a framework's file may change one field alone


def _with_positions(model: Any, training: Any) -> Any:
    """Dimensions given without learned positions get as many as the sequence needs, and say so; so
    do those that were filled in for another one.
    """
    seq = training.get("seq") if isinstance(training, dict) else getattr(training, "seq", None)
    try:
        needed = max(parse_whole(seq), GPT2_POSITIONS)
    except ValueError:
        needed = GPT2_POSITIONS
    if isinstance(model, Model) and "positions" in model.filled and model.positions != needed:
        model = model.model_dump()
    if not isinstance(model, dict):
        return model
    if model.get("positions") != needed:
        model = only_given(model, ("positions",))
    if (
        model.get("positions") is not None
        or model.get("hidden") is None
        or (model.get("kind") or DEFAULT_KIND) != "gpt2"
        or needed == GPT2_POSITIONS
    ):
        return model
    if not all(isinstance(model.get(key, ()), (list, tuple)) for key in ("assumed", "filled")):
        return model  # its own validation says so
    assumed, filled = (
        (*model.get("assumed", ()), positions_for(needed)),
        (*model.get("filled", ()), "positions"),
    )
    return {**model, "positions": needed, "assumed": assumed, "filled": filled}
