"""The job: all that a user describes, and the checks that cross its parts."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zerocalc.spec.base import FieldError, Spec, from_preset
from zerocalc.spec.cluster import Cluster, Parallel
from zerocalc.spec.framework import Framework
from zerocalc.spec.implementation import Implementation
from zerocalc.spec.loss import Loss
from zerocalc.spec.model import GPT2_POSITIONS, Model
from zerocalc.spec.recipe import Recipe
from zerocalc.spec.training import Training
from zerocalc.spec.zero import Zero
from zerocalc.units import parse_whole

DEFAULT_FRAMEWORK = "paper"
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
        """The data-parallel degree; also N_d, the degree over which the paper shards states."""
        return self.cluster.gpus // self.model_parallel

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages asked for: all that the framework has unless some were named."""
        return self.zero.stage or tuple(stage.stage for stage in self.framework.stages)

    @property
    def reduce_dtype(self) -> str:
        """The dtype in which gradients are reduced."""
        return self.zero.reduce_dtype or self.recipe.gradient_dtype

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_degrees()
        self._check_stages()
        self._check_activations()
        if self.model.quantised and self.model.trainable:
            raise FieldError("model.trainable", f"a frozen base in {self.model.quantised} is not counted yet; without it the whole model is trained")
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
        if self.training.seq and p.cp > self.training.seq:
            raise FieldError("parallel.cp", f"{p.cp} is more than the {self.training.seq} tokens of a sequence")

    def _check_stages(self) -> None:
        z = self.zero
        for stage in z.stage or ():
            self.framework.stage(stage)
        if z.grad_sync == "all-reduce" and 1 not in self.stages:
            raise FieldError("zero.grad_sync", "all-reduce is a variant of stage 1, which is not among the stages asked for")
        if z.gather == "broadcast" and 3 not in self.stages:
            raise FieldError("zero.gather", "broadcast is a variant of stage 3, which is not among the stages asked for")
        if z.defer_grad_sync and not {2, 3} & set(self.stages):
            raise FieldError("zero.defer_grad_sync", "is for stages 2 and 3; the others reduce once a step anyway")
        if z.gather == "broadcast" and self.model.is_bare and self.model.blocks is None:
            raise FieldError("zero.gather", "broadcast sends block by block: say how many blocks the parameters are cut into (model.blocks)")

    def _check_activations(self) -> None:
        z, t, p, m = self.zero, self.training, self.parallel, self.model
        if t.recompute_every > 1 and t.recompute not in ("full", "operators"):
            raise FieldError("training.recompute_every", f"recomputes one layer in {t.recompute_every}: it needs recompute full or operators")
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
    """Dimensions given without learned positions get as many as the sequence needs, and say so."""
    seq = training.get("seq") if isinstance(training, dict) else getattr(training, "seq", None)
    if not isinstance(model, dict) or model.get("positions") is not None or model.get("hidden") is None or model.get("kind", "gpt2") != "gpt2":
        return model
    try:
        needed = parse_whole(seq)
    except ValueError:
        return model
    if needed <= GPT2_POSITIONS:
        return model
    assumed = (*model.get("assumed", ()), f"{needed:,} learned positions (the sequence length)")
    return {**model, "positions": needed, "assumed": assumed}
