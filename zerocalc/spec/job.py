"""The job: all that a user describes, and the checks that cross its parts."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import FieldError, Spec, from_preset
from zerocalc.spec.cluster import Cluster, Parallel
from zerocalc.spec.framework import Framework, FrameworkStage
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.loss import Loss
from zerocalc.spec.model import DEFAULT_KIND, GPT2_POSITIONS, Model, only_given, positions_for
from zerocalc.spec.recipe import Recipe
from zerocalc.spec.training import Training
from zerocalc.spec.zero import Zero
from zerocalc.units import parse_whole

DEFAULT_FRAMEWORK = "paper"
OPTIONS = (
    *("grad_sync", "defer_grad_sync", "gather", "reduce_dtype", "buffers", "reduce_bucket_size", "allgather_bucket_size", "overlap_comm"),
    *("shard_group", "sub_group_size", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "persistence_threshold"),
    *("secondary_group", "reduce_to_owner", "grad_accum_dtype", "contiguous_gradients", "quantised_weights", "quantised_gradients"),
    "offload_activations",
)
"""Choices of ZeRO's that not every framework offers."""
DEFAULT_OF = (("recipe", "framework"), ("implementation", "framework"), ("loss", "implementation"))
"""What a job takes from another part of it unless told otherwise: the framework names a recipe and an implementation, that one its loss."""


class Job(Spec):
    """A training job: ``Job(model="llama-3-8b", cluster=Cluster(gpus=8, gpu="h100-80g"))``.

    A string stands for the preset of that name or for a TOML file; the dump holds what it stands for.
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

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """The paper's framework unless another is named, and its recipe, implementation and loss unless they are."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("model") is None:
            data["model"] = {}  # so that Model says what is missing
        if data.get("cluster") is None:
            data["cluster"] = {}
        for part in ("training", "parallel", "zero"):
            data.setdefault(part, {})  # validated with the rest: a default that is a model would need a validator of its own
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
    def shards(self) -> int:
        """N_d: the ranks over which gradients are reduced and states sharded.

        Context-parallel ranks hold the same parameters and see other tokens, so that they belong to it (Megatron's and torchtitan's groups for
        gradients and shards, DeepSpeed-Ulysses' too: arXiv 2309.14509); [ZeRO] has no context parallelism.
        """
        return self.zero.shard_group or self.dp * self.parallel.cp

    def dtype_of(self, word: str) -> str:
        """The dtype that a framework's word stands for: gather, reduce, compute, weights, or a dtype itself."""
        if word == "gather":
            return self.gather_dtype
        if word == "reduce":
            return self.reduce_dtype
        if word == "weights":
            return next(row.dtype for row in self.recipe.rows if row.kind == "weights")
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
    def stages(self) -> tuple[int, ...]:
        """The stages asked for: all that the framework has, and that can offload what is to be offloaded, unless some were named."""
        return self.zero.stage or tuple(stage.stage for stage in self.framework.stages if not self.zero.offloads or self.can_offload(stage))

    def can_offload(self, stage: FrameworkStage) -> bool:
        """Whether a stage can keep elsewhere than on the GPU what is to be kept there."""
        return stage.offloading is not None and stage.offloading.takes(self.zero.offload_optimizer, self.zero.offload_params)

    @property
    def reduce_dtype(self) -> str:
        """The dtype in which gradients are reduced."""
        return self.zero.reduce_dtype or self.trained_recipe.gradient_dtype

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe as it holds for what is trained: the adapters alone where there are some."""
        lora = self.model.lora
        return self.recipe if lora is None else self.recipe.for_adapters(lora.dtype)

    @property
    def gather_dtype(self) -> str:
        """The dtype in which a sharded unit's weights are gathered; a frozen base's are held in the compute dtype already."""
        return self.recipe.gather if self.model.lora is None else self.recipe.compute

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.zero.offloads:
            from zerocalc.spec.offload import check_offload  # most jobs keep all on the GPU

            check_offload(self)
        self._check_degrees()
        self._check_stages()
        self._check_activations()
        if self.model.is_bare and any(row.of == "factored" for row in self.recipe.rows):
            raise FieldError("recipe", f"{self.recipe.name} keeps a sum per row and column of each matrix: give the architecture, not just params")
        return self

    def _check_degrees(self) -> None:
        p, gpus = self.parallel, self.cluster.gpus
        for name, degree in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp)):
            if degree > gpus:
                raise FieldError(f"parallel.{name}", f"{degree} is more than the {gpus} GPUs")
        if gpus % self.model_parallel:
            lower = gpus - gpus % self.model_parallel
            nearby = f"{lower} or {lower + self.model_parallel}" if lower else f"{self.model_parallel}"
            raise FieldError("cluster.gpus", f"{gpus} is not divisible by tp·pp·cp = {p.tp}·{p.pp}·{p.cp} = {self.model_parallel}; {nearby} would be")
        m = self.model
        for heads in m.head_counts:
            if heads % p.tp:
                raise FieldError("parallel.tp", f"{p.tp} does not divide the {heads} heads")
        if m.layer_count and p.pp > m.layer_count:
            raise FieldError("parallel.pp", f"{p.pp} stages are more than the {m.layer_count} layers")
        if p.interleave > 1:
            self._check_interleaving()
        if p.pipeline_stage is not None and (m.is_bare or m.lora is not None or m.quantised is not None):
            raise FieldError(
                "parallel.pipeline_stage", "needs an architecture that is trained as a whole: no bare count, no adapters, no quantised base"
            )
        if self.training.seq and p.cp > self.training.seq:
            raise FieldError("parallel.cp", f"{p.cp} is more than the {self.training.seq} tokens of a sequence")

    def _check_interleaving(self) -> None:
        p, micro_batches, layers = self.parallel, self.training.accumulation, self.model.layer_count
        if p.pp == 1:
            raise FieldError("parallel.interleave", f"gives each pipeline stage {p.interleave} chunks of layers: it needs pp above 1")
        if layers and p.pp * p.interleave > layers:
            raise FieldError("parallel.interleave", f"{p.pp} stages of {p.interleave} chunks are more than the {layers} layers")
        if micro_batches % p.pp:
            raise FieldError(
                "parallel.interleave", f"interleaving takes micro-batches in rounds of {p.pp} (pp): {micro_batches} a step are no whole rounds"
            )

    def _check_stages(self) -> None:
        z = self.zero
        self._check_options()
        self._check_time()
        for stage in z.stage or ():
            self.framework.stage(stage)
        if z.grad_sync == "all-reduce" and 1 not in self.stages:
            raise FieldError("zero.grad_sync", "all-reduce is a variant of stage 1, which is not among the stages asked for")
        if z.gather == "broadcast" and 3 not in self.stages:
            raise FieldError("zero.gather", "broadcast is a variant of stage 3, which is not among the stages asked for")
        if z.defer_grad_sync and not {2, 3} & set(self.stages):
            raise FieldError("zero.defer_grad_sync", "is for stages 2 and 3; the others reduce once a step anyway")
        if z.secondary_group and 3 not in self.stages:
            raise FieldError("zero.secondary_group", "is a second copy of the weights that stage 3 shards, and stage 3 is not asked for")
        if z.quantised_weights and 3 not in self.stages:
            raise FieldError("zero.quantised_weights", "is how stage 3 gathers weights, and stage 3 is not asked for")
        if z.reduce_to_owner and not {1, 2} & set(self.stages):
            raise FieldError("zero.reduce_to_owner", "is for stages 1 and 2, none of which is asked for")
        if z.gather == "broadcast" and self.model.is_bare and self.model.blocks is None:
            raise FieldError("zero.gather", "broadcast sends block by block: say how many blocks the parameters are cut into (model.blocks)")

    def _check_time(self) -> None:
        if self.training.kernel_efficiency == 0 or self.cluster.kernel_efficiency[0] == 0:
            raise FieldError("training.kernel_efficiency", "0 of the peak computes nothing: a share above 0 and below 1 is wanted, such as 0.5")

    def _check_options(self) -> None:
        z, known = self.zero, self.framework.options
        for name in OPTIONS:
            if known is not None and name not in known and getattr(z, name) != type(z).model_fields[name].default:
                raise FieldError(f"zero.{name}", f"means nothing to {self.framework.name}, which has {', '.join(known) or 'no such choice'}")
        every = self.dp * self.parallel.cp
        if z.shard_group and every % z.shard_group:
            raise FieldError("zero.shard_group", f"{z.shard_group} does not divide the {every} ranks that hold the same parameters")
        if z.secondary_group and self.shards % z.secondary_group:
            raise FieldError("zero.secondary_group", f"{z.secondary_group} does not divide the {self.shards} ranks over which weights are sharded")
        if z.quantised_gradients and 3 not in self.stages:
            raise FieldError("zero.quantised_gradients", "is how stage 3 reduces gradients, and stage 3 is not asked for")
        if z.quantised_gradients and (self.model_parallel > 1 or self.shards % self.cluster.gpus_per_node):
            raise FieldError("zero.quantised_gradients", f"needs whole nodes of {self.cluster.gpus_per_node} ranks that shard the same parameters")
        if z.shard_group and z.shard_group < every and all(self.framework.stage(stage).published for stage in self.stages):
            raise FieldError("zero.shard_group", f"{self.framework.name} does not say how copies are kept alike")

    def _check_activations(self) -> None:
        z, t, p, m = self.zero, self.training, self.parallel, self.model
        if t.recompute_every > 1 and t.recompute not in ("full", "operators"):
            raise FieldError("training.recompute_every", f"recomputes one layer in {t.recompute_every}: it needs recompute full or operators")
        if z.offload_activations != "none" and t.recompute != "full":
            raise FieldError("zero.offload_activations", "moves stored checkpoints to the host: it needs recompute full")
        if z.partition_activations:
            if p.tp == 1:
                raise FieldError(
                    "zero.partition_activations",
                    "splits what tensor-parallel ranks hold alike; with tp = 1 there is nothing (data-parallel ranks hold different data)",
                )
            if t.recompute != "full":
                raise FieldError("zero.partition_activations", "splits stored checkpoints (P_a): it needs recompute full")
            if p.sequence_parallel:
                raise FieldError("zero.partition_activations", "contradicts sequence_parallel, which splits the checkpoints already")
        if t.seq and t.attention != "eager" and self.implementation.softmax == "as_written" and m.stack is not None and m.stack.only_eager:
            raise FieldError(
                "training.attention", f"{t.attention}: of the class of {m.family or 'this model'} only unfused attention (eager) is known"
            )
        if t.seq and m.kind == "gpt2" and m.positions and t.seq > m.positions:
            raise FieldError("training.seq", f"{t.seq} is more than the model's {m.positions} learned positions")


def _named_by(data: dict[str, Any], owner: str, part: str) -> Any:
    """What the framework or the implementation names for a part of the job that was not given."""
    described = data.get(owner)
    if isinstance(described, str):
        from zerocalc import presets

        described = data[owner] = presets.load(f"{owner}s", described)
    return described.get(part) if isinstance(described, dict) else getattr(described, part, None)


def _with_positions(model: Any, training: Any) -> Any:
    """Dimensions given without learned positions get as many as the sequence needs, and say so; so do those that were filled in for another one."""
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
    if model.get("positions") is not None or model.get("hidden") is None or (model.get("kind") or DEFAULT_KIND) != "gpt2" or needed == GPT2_POSITIONS:
        return model
    if not all(isinstance(model.get(key, ()), (list, tuple)) for key in ("assumed", "filled")):
        return model  # its own validation says so
    assumed, filled = (*model.get("assumed", ()), positions_for(needed)), (*model.get("filled", ()), "positions")
    return {**model, "positions": needed, "assumed": assumed, "filled": filled}
