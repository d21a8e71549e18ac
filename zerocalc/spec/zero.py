"""What a job chooses of ZeRO: stages, gradient reduction, parameter gathering, buckets, offload,
activation checkpoints, fragmentation.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, StrictBool, field_validator, model_validator

from zerocalc.quantities import Count, Fraction, Whole, parse_count, shown
from zerocalc.spec.base import FieldError, Spec, items
from zerocalc.spec.recipe import FloatDtype

STAGES = (0, 1, 2, 3)

DEFAULT_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's reduce_bucket_size and allgather_bucket_size (docs/_pages/config-json.md); [ZeRO]
gives no number for C_B.
"""
DEFAULT_SUB_GROUP_ELEMENTS = 1_000_000_000
"""DeepSpeed's sub_group_size [elements]."""
DEFAULT_LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters and stage3_max_reuse_distance [elements]."""
DEFAULT_PREFETCH_ELEMENTS = 50_000_000
"""DeepSpeed's stage3_prefetch_bucket_size [elements]."""
DEFAULT_PERSISTENT_ELEMENTS = 100_000
"""DeepSpeed's stage3_param_persistence_threshold [elements]."""
FUSED_BUFFER_BYTES = 4
"""[ZeRO] §6.2: fp32 elements; 3B parameters need a buffer of 12 GB."""
FRAGMENTATION_WITHOUT_DEFRAGMENTATION = 0.3
"""[ZeRO] §3.2: out of memory with over 30 % still free, in extreme cases; §6.3 is the remedy."""


def _window(value: Any) -> Any:
    """A number of elements, 0 included."""
    return 0 if value in (0, "0") and not isinstance(value, bool) else parse_count(value)


Window = Annotated[int, BeforeValidator(_window)]
Device = Literal["none", "cpu", "nvme"]
"""Where a state is offloaded to; ``none`` keeps it on the GPU."""
Tier = Literal["gpu", "cpu", "nvme"]


OPTIONS = (
    "grad_sync",
    "defer_grad_sync",
    "gather",
    "reduce_dtype",
    "buffers",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "shard_group",
    "sub_group_size",
    "max_live_parameters",
    "max_reuse_distance",
    "prefetch_bucket_size",
    "persistence_threshold",
    "secondary_group",
    "reduce_to_owner",
    "grad_accum_dtype",
    "contiguous_gradients",
    "quantised_weights",
    "quantised_gradients",
    "offload_activations",
)
"""The fields of `Zero` that not every framework supports: see ``options`` of a `Framework`."""


class Zero(Spec):
    """The choices that ZeRO-DP and ZeRO-R offer, as DeepSpeed names them where it has a name."""

    stage: tuple[int, ...] | None = None
    """ZeRO stages to estimate: 0 (DDP), 1, 2, 3, a list of these, or text such as ``1,3``. Default:
    every stage of the framework that supports the job.
    """
    grad_sync: Literal["reduce-scatter", "all-reduce"] = "reduce-scatter"
    """How gradients are reduced. ``all-reduce`` leaves the sum on every rank and sends twice as
    much as a reduce-scatter (in ZeRO as published at stage 1, in DeepSpeed at stages 1 to 3).
    """
    defer_grad_sync: StrictBool = False
    """Whether gradients are reduced once per optimizer step instead of once per micro-batch. Saves
    traffic under gradient accumulation; unreduced gradients stay whole in memory. Default: no.
    """
    gather: Literal["all-gather", "broadcast"] = "all-gather"
    """How stage 3 gathers parameters: ``all-gather`` of equal shards, or ``broadcast`` by the rank
    that owns a whole block. Changes what a rank sends and the size of its shard.
    """
    reduce_dtype: FloatDtype | None = None
    """Dtype in which gradients are reduced. Default: that of the recipe's gradients. Changes
    traffic and reduce buckets.
    """
    shard_group: Whole | None = None
    """Hybrid sharding: ranks per group over which states are sharded; the groups are replicas.
    Default: all data-parallel and context-parallel ranks. A smaller group needs more memory, keeps
    gathers inside it, and adds an all-reduce of gradients over the replicas.
    """
    secondary_group: Whole | None = None
    """hpZ (ZeRO++): ranks per group over which stage 3 keeps a second copy of the parameters.
    Default: no such copy. Backward gathers inside the group; memory grows by the copy's shard.
    """
    reduce_to_owner: StrictBool = False
    """Whether stages 1 and 2 reduce each gradient to the rank that owns it, instead of
    all-reducing buckets (DeepSpeed with use_multi_rank_bucket_allreduce off). Default: no.
    """
    grad_accum_dtype: Literal["fp32"] | None = None
    """Dtype in which gradients are accumulated. Default: their own. ``fp32`` adds a buffer of
    accumulated gradients.
    """
    contiguous_gradients: StrictBool = True
    """Whether gradients are copied into the reduce bucket as they are computed. Off: unreduced
    gradients wait in memory and are flattened into a second copy. Default: on.
    """
    quantised_weights: StrictBool = False
    """qwZ (ZeRO++): whether stage 3 all-gathers parameters in int8. Default: no."""
    quantised_gradients: StrictBool = False
    """qgZ (ZeRO++): whether stage 3 reduces gradients in 4 bits by two all-to-alls, intra-node and
    then inter-node. Default: no.
    """
    max_live_parameters: Window = DEFAULT_LIVE_ELEMENTS
    """Gathered parameters at one time, from which on stage 3 stops prefetching [elements]. Default:
    1e9. Changes the all-gathered parameters in memory, and when they are gathered.
    """
    max_reuse_distance: Window = DEFAULT_LIVE_ELEMENTS
    """Stage 3 keeps a parameter gathered if the next use is at most this far away [elements].
    Default: 1e9. A longer distance costs memory and saves all-gathers.
    """
    prefetch_bucket_size: Window = DEFAULT_PREFETCH_ELEMENTS
    """Parameters that stage 3 gathers ahead of their use [elements]. Default: 5e7. Changes the
    all-gathered parameters in memory, and the number of calls.
    """
    persistence_threshold: Window = DEFAULT_PERSISTENT_ELEMENTS
    """Tensors up to this size stay whole on every rank at stage 3 [elements]. Default: 1e5. They
    cost memory and are gathered once per step.
    """
    sub_group_size: Count = DEFAULT_SUB_GROUP_ELEMENTS
    """Elements that stage 3's optimizer step processes at once. Default: 1e9. Changes its fp32
    gradients and, with optimizer states on NVMe, the swap buffers.
    """
    buffers: Literal["constant", "fused"] = "constant"
    """``constant`` (C_B): communication buckets of fixed size. ``fused``: one fp32 buffer of the
    model's size, 4 bytes per parameter.
    """
    reduce_bucket_size: Count = DEFAULT_BUCKET_ELEMENTS
    """Size of the bucket in which gradients are reduced [elements]. Default: 5e8. Changes memory
    and the number of calls.
    """
    allgather_bucket_size: Count = DEFAULT_BUCKET_ELEMENTS
    """Size of the bucket in which stages 1 and 2 all-gather updated parameters [elements]. Default:
    5e8. Changes memory and the number of calls.
    """
    overlap_comm: StrictBool | None = None
    """Whether communication overlaps compute. Default: as the framework does at the stage. Changes
    the exposed communication; on, stages 1 and 2 hold two reduce buckets.
    """
    partition_activations: StrictBool = False
    """P_a: whether tensor-parallel ranks split the activation checkpoints among them. Default: no.
    Divides their memory by tp and adds an all-gather per layer in backward.
    """
    cpu_checkpointing: StrictBool = False
    """P_a+cpu: whether the partitioned activation checkpoints move to CPU memory; the same as
    ``offload_activations`` cpu. Default: no. Adds CPU memory and PCIe traffic.
    """
    offload_optimizer: Device = "none"
    """Where optimizer states and sharded gradients are. Default: on the GPU. Moves memory to that
    tier, adds PCIe (and NVMe) traffic, and runs the optimizer step on the CPU.
    """
    offload_params: Device = "none"
    """Where the sharded parameters are. Default: on the GPU. Moves memory to that tier and adds
    PCIe (and NVMe) traffic for every gather.
    """
    offload_activations: Literal["none", "cpu"] = "none"
    """Where the activation checkpoints of ``recompute`` full are. Default: on the GPU. Moves memory
    to the CPU and adds PCIe traffic.
    """
    defragment: StrictBool = True
    """M_D: whether checkpoints and gradients are in contiguous buffers, so that nothing is lost to
    fragmentation. Default: yes.
    """
    fragmentation: Fraction | None = None
    """Bytes lost to fragmentation per byte of dynamic GPU memory in use, with ``defragment`` off.
    Default: 0.3. Added to the reserved memory, not to the peak.
    """

    @field_validator("stage", mode="before")
    @classmethod
    def _stages(cls, value: Any) -> Any:
        """One stage, a list of them, or text such as ``1,3``."""
        if value is None:
            return None
        stages = []
        for part in items(value):
            text = part.strip() if isinstance(part, str) else part
            if (
                isinstance(text, bool)
                or str(text) not in {"0", "1", "2", "3"}
                or not isinstance(text, (int, str))
            ):
                raise ValueError(
                    f"{shown(text)} is not a ZeRO stage; the stages are 0 (DDP), 1, 2 and 3"
                )
            stages.append(int(text))
        if not stages:
            raise ValueError("is empty")
        return tuple(sorted(set(stages)))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.cpu_checkpointing and not self.partition_activations:
            raise FieldError(
                "zero.cpu_checkpointing",
                "needs partition_activations: it moves partitioned activations to the CPU",
            )
        if self.fragmentation is not None and self.defragment and self.fragmentation > 0:
            raise FieldError(
                "zero.fragmentation",
                f"{self.fragmentation:g} contradicts defragment (M_D), with which "
                "nothing is lost: turn one of them off",
            )
        sizes = {
            "reduce_bucket_size": self.reduce_bucket_size,
            "allgather_bucket_size": self.allgather_bucket_size,
        }
        for name, size in sizes.items():
            if self.buffers == "fused" and size != DEFAULT_BUCKET_ELEMENTS:
                raise FieldError(
                    f"zero.{name}",
                    f"{size:,} contradicts buffers fused, which has no buckets",
                )
        return self

    @property
    def offloads(self) -> bool:
        """Whether optimizer states or parameters are offloaded."""
        return self.offload_optimizer != "none" or self.offload_params != "none"

    @property
    def quantises(self) -> bool:
        """Whether parameters or gradients are communicated quantised."""
        return self.quantised_weights or self.quantised_gradients

    @property
    def checkpoints_on_host(self) -> bool:
        """Whether activation checkpoints are in CPU memory, by either field."""
        return self.cpu_checkpointing or self.offload_activations == "cpu"

    def tier_of(self, what: Literal["optimizer", "params"]) -> Tier:
        """The tier of the optimizer states with their gradients, or of the parameters."""
        device: Device = self.offload_optimizer if what == "optimizer" else self.offload_params
        return "gpu" if device == "none" else device

    @property
    def fragmentation_fraction(self) -> float:
        """Bytes lost to fragmentation per byte of dynamic memory in use."""
        if self.defragment:
            return 0.0
        return (
            FRAGMENTATION_WITHOUT_DEFRAGMENTATION
            if self.fragmentation is None
            else self.fragmentation
        )
