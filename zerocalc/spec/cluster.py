"""The machine: how many GPUs, of which kind, and how they are divided among forms of parallelism."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc import presets
from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec, from_preset
from zerocalc.units import Bytes, Capacity, Flops, Rate, Whole, format_gib

DEFAULT_GPUS_PER_NODE = 8
"""DGX A100, DGX H100, HGX and the large clouds' nodes; see presets/nodes."""


class Gpu(Spec):
    """An accelerator. Bandwidths [bytes/s] are one-way and per GPU; a figure without a source is left out."""

    title: Annotated[str, Field(max_length=200)]
    source: Annotated[str, Field(max_length=2000)]
    usable_bytes: Capacity | None = None
    bf16_dense_flops_per_second: Flops | None = None
    memory_bytes_per_second: Rate | None = None
    scale_up_bytes_per_second: Rate | None = None
    scale_up: Literal["all-to-all", "pairs", "torus"] | None = None
    pcie_bytes_per_second: Rate | None = None
    runtime_bytes: Bytes | None = None
    runtime_note: Annotated[str, Field(max_length=500)] | None = None
    note: Annotated[str, Field(max_length=500)] | None = None

    @property
    def runtime_words(self) -> str:
        """What the device's runtime is taken to hold, and on what ground."""
        return f"device runtime {format_gib(self.runtime_bytes or 0)}" + (f" ({self.runtime_note})" if self.runtime_note else "")


class Node(Spec):
    """A server: its GPUs and its network cards together [bytes/s, one way]."""

    title: Annotated[str, Field(max_length=200)]
    source: Annotated[str, Field(max_length=2000)]
    gpus: Whole
    gpu: Annotated[str, Field(max_length=LONGEST_PATH)]
    network_bytes_per_second: Rate | None = None
    note: Annotated[str, Field(max_length=500)] | None = None


class Cluster(Spec):
    """The GPUs of a job. ``gpu_memory`` [bytes] is what a process can use, and overrides the GPU preset's figure."""

    gpus: Whole
    gpu: Annotated[Gpu, from_preset("gpus")] | None = None
    gpu_memory: Capacity | None = None
    node: Annotated[Node, from_preset("nodes")] | None = None
    gpus_per_node: Whole = DEFAULT_GPUS_PER_NODE

    @model_validator(mode="before")
    @classmethod
    def _from_node(cls, data: Any) -> Any:
        """A node says which GPUs it has and how many, unless told otherwise."""
        node = data.get("node") if isinstance(data, dict) else None
        if node is None:
            return data
        if isinstance(node, str):
            node = presets.load("nodes", node)
        if not isinstance(node, dict):
            return data
        out = {**data, "node": node}
        for field, key in (("gpu", "gpu"), ("gpus_per_node", "gpus")):
            if out.get(field) is None and node.get(key) is not None:
                out[field] = node[key]
        return out

    @property
    def usable_bytes(self) -> int | None:
        """What one GPU can hold [bytes], if that is known."""
        return self.gpu_memory if self.gpu_memory is not None else self.gpu.usable_bytes if self.gpu else None


class Parallel(Spec):
    """Degrees of model parallelism; what is left of the GPUs is data parallelism."""

    tp: Whole = 1
    pp: Whole = 1
    cp: Whole = 1
    sequence_parallel: StrictBool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sequence_parallel and self.tp == 1:
            raise FieldError("parallel.sequence_parallel", "splits what tensor parallelism replicates: it needs tp above 1")
        return self
