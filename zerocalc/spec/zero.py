"""ZeRO-DP and ZeRO-R: the stage, how gradients and weights travel, buffers, partitioned
activations, fragmentation.
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
"""DeepSpeed's sub_group_size: elements of a shard that one turn of the optimizer's step handles at
stage 3.
"""
DEFAULT_LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters and stage3_max_reuse_distance [elements]."""
DEFAULT_PREFETCH_ELEMENTS = 50_000_000
"""DeepSpeed's stage3_prefetch_bucket_size [elements]."""
DEFAULT_PERSISTENT_ELEMENTS = 100_000
"""DeepSpeed's stage3_param_persistence_threshold: tensors of up to so many elements stay whole on
every rank.
"""
NOT_CHOSEN = (None, False, "none", "reduce-scatter")
"""What options hold where a choice has not been made."""
FUSED_BUFFER_BYTES = 4
"""[ZeRO] §6.2: fp32 elements; 3B parameters need a buffer of 12 GB."""
FRAGMENTATION_WITHOUT_DEFRAGMENTATION = 0.3
"""[ZeRO] §3.2: out of memory with over 30 % still free, in extreme cases; §6.3 is the remedy."""


def _window(value: Any) -> Any:
    """A number of elements, of which there may be none."""
    return 0 if value in (0, "0") and not isinstance(value, bool) else parse_count(value)


Window = Annotated[int, BeforeValidator(_window)]
Device = Literal["none", "cpu", "nvme"]
"""Where a state lies that is not on the GPU: in a node's memory, or on its drives."""
Tier = Literal["gpu", "cpu", "nvme"]


OPTIONS = (
    *(
        "grad_sync",
        "defer_grad_sync",
        "gather",
        "reduce_dtype",
        "buffers",
        "reduce_bucket_size",
        "allgather_bucket_size",
        "overlap_comm",
    ),
    *(
        "shard_group",
        "sub_group_size",
        "max_live_parameters",
        "max_reuse_distance",
        "prefetch_bucket_size",
        "persistence_threshold",
    ),
    *(
        "secondary_group",
        "reduce_to_owner",
        "grad_accum_dtype",
        "contiguous_gradients",
        "quantised_weights",
        "quantised_gradients",
    ),
    "offload_activations",
)
"""Choices of ZeRO's that not every framework offers."""


class Zero(Spec):
    """The choices that ZeRO offers. Bucket sizes in elements.

    ``cpu_checkpointing`` is P_a+cpu's name for ``offload_activations`` cpu: of partitioned
    checkpoints.
    """

    stage: tuple[int, ...] | None = None
    grad_sync: Literal["reduce-scatter", "all-reduce"] = "reduce-scatter"
    defer_grad_sync: StrictBool = False
    gather: Literal["all-gather", "broadcast"] = "all-gather"
    reduce_dtype: FloatDtype | None = None
    shard_group: Whole | None = None
    secondary_group: Whole | None = None
    reduce_to_owner: StrictBool = False
    grad_accum_dtype: Literal["fp32"] | None = None
    contiguous_gradients: StrictBool = True
    quantised_weights: StrictBool = False
    quantised_gradients: StrictBool = False
    max_live_parameters: Window = DEFAULT_LIVE_ELEMENTS
    max_reuse_distance: Window = DEFAULT_LIVE_ELEMENTS
    prefetch_bucket_size: Window = DEFAULT_PREFETCH_ELEMENTS
    persistence_threshold: Window = DEFAULT_PERSISTENT_ELEMENTS
    sub_group_size: Count = DEFAULT_SUB_GROUP_ELEMENTS
    buffers: Literal["constant", "fused"] = "constant"
    reduce_bucket_size: Count = DEFAULT_BUCKET_ELEMENTS
    allgather_bucket_size: Count = DEFAULT_BUCKET_ELEMENTS
    overlap_comm: StrictBool | None = None
    partition_activations: StrictBool = False
    cpu_checkpointing: StrictBool = False
    offload_optimizer: Device = "none"
    offload_params: Device = "none"
    offload_activations: Literal["none", "cpu"] = "none"
    defragment: StrictBool = True
    fragmentation: Fraction | None = None

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
            raise ValueError("names no stage")
        return tuple(sorted(set(stages)))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.cpu_checkpointing and not self.partition_activations:
            raise FieldError(
                "zero.cpu_checkpointing",
                "moves partitioned activations to the host: it needs partition_activations too",
            )
        if self.fragmentation is not None and self.defragment and self.fragmentation > 0:
            raise FieldError(
                "zero.fragmentation",
                f"{self.fragmentation:g} contradicts defragment (M_D), under which nothing "
                "is lost: turn that off, or leave this out",
            )
        sizes = {
            "reduce_bucket_size": self.reduce_bucket_size,
            "allgather_bucket_size": self.allgather_bucket_size,
        }
        for name, size in sizes.items():
            if self.buffers == "fused" and size != DEFAULT_BUCKET_ELEMENTS:
                raise FieldError(
                    f"zero.{name}",
                    f"{size:,} contradicts buffers fused, one buffer of the model's size: "
                    "buckets are for constant ones",
                )
        return self

    def chosen(self, when: str | tuple[str, ...] | None, unless: tuple[str, ...] = ()) -> bool:
        """Whether what is there only ``when`` some options are set, and ``unless`` others are, is
        there.
        """
        needed = (when,) if isinstance(when, str) else when or ()
        return all(self._set(option) for option in needed) and not any(
            self._set(option) for option in unless
        )

    def _set(self, option: str) -> bool:
        if option == "contiguous_gradients" and self.offload_optimizer != "none":
            return True  # what lies in the host's memory is copied from the contiguous bucket
        return getattr(self, option) not in NOT_CHOSEN

    @property
    def offloads(self) -> bool:
        """Whether some of the states lie elsewhere than on the GPU."""
        return self.offload_optimizer != "none" or self.offload_params != "none"

    @property
    def checkpoints_on_host(self) -> bool:
        """Whether what full recomputation stores lies in the host's memory, by either name."""
        return self.cpu_checkpointing or self.offload_activations == "cpu"

    def tier_of(self, what: Literal["optimizer", "params"]) -> Tier:
        """Where the optimizer, with its gradients, or the parameters lie."""
        device: Device = self.offload_optimizer if what == "optimizer" else self.offload_params
        return "gpu" if device == "none" else device

    @property
    def fragmentation_fraction(self) -> float:
        """Bytes lost to fragmentation for each byte of dynamic memory in use."""
        if self.defragment:
            return 0.0
        return (
            FRAGMENTATION_WITHOUT_DEFRAGMENTATION
            if self.fragmentation is None
            else self.fragmentation
        )
