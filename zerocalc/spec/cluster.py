"""The machine: how many GPUs, of which kind, and how they are divided among forms of
parallelism.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc import presets
from zerocalc.quantities import Bytes, Capacity, Flops, Fraction, Rate, Whole, format_gib
from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec, from_preset

DEFAULT_GPUS_PER_NODE = 8
"""DGX A100, DGX H100, HGX and the large clouds' nodes; see presets/nodes."""


KERNEL_EFFICIENCY = 0.55
"""Share of the dense peak that kernels reach while they compute, where a GPU's preset has none."""
KERNEL_EFFICIENCY_NOTE = (
    "an A100's in [SP] Table 5, over whole steps of large models; taken as the same here"
)


class Gpu(Spec):
    """An accelerator. Bandwidths [bytes/s] are one-way and per GPU; a figure without a source is
    left out.

    ``kernel_efficiency``: the share of the dense bf16 peak that the kernels of large models reach
    while they compute.
    """

    title: Annotated[str, Field(max_length=200)]
    source: Annotated[str, Field(max_length=2000)]
    usable_bytes: Capacity | None = None
    bf16_dense_flops_per_second: Flops | None = None
    memory_bytes_per_second: Rate | None = None
    scale_up_bytes_per_second: Rate | None = None
    scale_up: Literal["all-to-all", "pairs", "torus"] | None = None
    pcie_bytes_per_second: Rate | None = None
    runtime_bytes: Bytes | None = None
    cublas_workspace_bytes: Bytes | None = None
    gemm_workspace_bytes: Bytes | None = None
    runtime_note: Annotated[str, Field(max_length=500)] | None = None
    kernel_efficiency: Fraction | None = None
    kernel_efficiency_note: Annotated[str, Field(max_length=500)] | None = None
    note: Annotated[str, Field(max_length=500)] | None = None

    @property
    def runtime_words(self) -> str:
        """What the device's runtime is taken to hold, and on what ground."""
        return f"CUDA context {format_gib(self.runtime_bytes or 0)}" + (
            f" ({self.runtime_note})" if self.runtime_note else ""
        )


class Node(Spec):
    """A server: its GPUs, and its network cards (those that serve GPUs) together [bytes/s, one
    way]; its memory and its drives [bytes, bytes/s].

    ``host_link_bytes_per_second``: what all GPUs together exchange with the host, one way, where
    that is less than their links.
    """

    title: Annotated[str, Field(max_length=200)]
    source: Annotated[str, Field(max_length=2000)]
    gpus: Whole
    gpu: Annotated[str, Field(max_length=LONGEST_PATH)]
    network_bytes_per_second: Rate | None = None
    network_cards: Whole | None = None
    cpu_memory_bytes: Capacity | None = None
    cpu_memory_bytes_per_second: Rate | None = None
    host_link_bytes_per_second: Rate | None = None
    nvme_bytes: Capacity | None = None
    nvme_bytes_per_second: Rate | None = None
    note: Annotated[str, Field(max_length=500)] | None = None


def _title_of_gpu(name: str) -> str | None:
    """The title of a node's GPU; ``None`` where that was a file which has gone since a job was
    saved.
    """
    try:
        title = presets.load("gpus", name).get("title")
    except presets.PresetError:
        return None
    return title if isinstance(title, str) else None


class Cluster(Spec):
    """The GPUs of a job. ``workspaces``: whether those of cuBLAS are counted; ``cublas_workspace``
    [bytes] overrides the GPU's, as CUBLAS_WORKSPACE_CONFIG does. ``gpu_memory`` [bytes] is what a
    process can use, and overrides the GPU preset's figure.

    ``intra_node`` [bytes/s, one way] is what a GPU sends inside its node, ``inter_node`` what all
    cards of a node send together; ``cpu_memory`` and ``nvme_capacity`` [bytes] are a node's,
    ``cpu_bandwidth`` and ``nvme_bandwidth`` [bytes/s] theirs. They override the presets' figures.
    """

    gpus: Whole
    gpu: Annotated[Gpu, from_preset("gpus")] | None = None
    gpu_memory: Capacity | None = None
    node: Annotated[Node, from_preset("nodes")] | None = None
    gpus_per_node: Whole = DEFAULT_GPUS_PER_NODE
    workspaces: StrictBool = False
    cublas_workspace: Bytes | None = None
    intra_node: Rate | None = None
    inter_node: Rate | None = None
    cpu_memory: Capacity | None = None
    cpu_bandwidth: Rate | None = None
    nvme_capacity: Capacity | None = None
    nvme_bandwidth: Rate | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_node(cls, data: Any) -> Any:
        """A node says which GPUs it has and how many, unless told otherwise."""
        node = data.get("node") if isinstance(data, dict) else None
        if node is None:
            return data
        if isinstance(node, str):
            node = presets.load("nodes", node)
        if not isinstance(node, (dict, Node)):
            return data
        out = {**data, "node": node}
        for field, key in (("gpu", "gpu"), ("gpus_per_node", "gpus")):
            value = node.get(key) if isinstance(node, dict) else getattr(node, key)
            if out.get(field) is None and value is not None:
                out[field] = value
        return out

    @model_validator(mode="after")
    def _check(self) -> Self:
        gpu, node, memory = self.gpu, self.node, self.gpu_memory
        if node is not None:
            if self.gpus_per_node != node.gpus:
                raise FieldError(
                    "cluster.gpus_per_node",
                    f"{self.gpus_per_node} contradicts the node {node.title}, which has "
                    f"{node.gpus}",
                )
            own = _title_of_gpu(node.gpu)
            if gpu is not None and own is not None and gpu.title != own:
                raise FieldError(
                    "cluster.gpu",
                    f"{gpu.title} contradicts the node {node.title}, whose GPUs are {own}",
                )
        if (
            gpu is not None
            and memory is not None
            and gpu.usable_bytes is not None
            and memory > gpu.usable_bytes
        ):
            raise FieldError(
                "cluster.gpu_memory",
                f"{format_gib(memory)} is more than the {format_gib(gpu.usable_bytes)} "
                f"usable on {gpu.title}",
            )
        return self

    @property
    def kernel_efficiency(self) -> tuple[float, str]:
        """The share of the dense peak that kernels reach on this GPU, and on what ground."""
        gpu = self.gpu
        if gpu is None or gpu.kernel_efficiency is None:
            return KERNEL_EFFICIENCY, KERNEL_EFFICIENCY_NOTE
        return gpu.kernel_efficiency, gpu.kernel_efficiency_note or gpu.source

    def peak_flops_per_second(self, dtype: str) -> int | None:
        """The GPU's dense peak in a dtype; ``None`` where it is not known, as in fp32."""
        return (
            self.gpu.bf16_dense_flops_per_second if self.gpu and dtype in ("bf16", "fp16") else None
        )

    @property
    def intra_node_bytes_per_second(self) -> int | None:
        """What one GPU sends to others of its node [bytes/s, one way]: over the scale-up link, or
        over its host link where it has none.
        """
        gpu = self.gpu
        return self.intra_node or (
            gpu.scale_up_bytes_per_second or gpu.pcie_bytes_per_second if gpu else None
        )

    @property
    def inter_node_bytes_per_second(self) -> int | None:
        """What a node's network cards send together [bytes/s, one way]."""
        return self.inter_node or (self.node.network_bytes_per_second if self.node else None)

    @property
    def inter_node_bytes_per_second_per_gpu(self) -> int | None:
        """One GPU's share of that [bytes/s, one way]."""
        return _share(self.inter_node_bytes_per_second, self.gpus_per_node)

    @property
    def network_cards(self) -> int | None:
        """Network cards of a node that serve its GPUs, if that is known."""
        return self.node.network_cards if self.node else None

    @property
    def gpus_of_a_node(self) -> int:
        """GPUs of the job in one node."""
        return min(self.gpus_per_node, self.gpus)

    def bytes_per_card(self, bytes_per_gpu: int) -> int | None:
        """What each network card of a node sends when each of its GPUs sends so much to other
        nodes, if it is known how many cards there are.
        """
        return (
            -(-bytes_per_gpu * self.gpus_of_a_node // self.network_cards)
            if self.network_cards
            else None
        )

    @property
    def host_bytes_per_second_per_gpu(self) -> int | None:
        """What one GPU exchanges with its host while all of its node do [bytes/s, one way]."""
        own = self.gpu.pcie_bytes_per_second if self.gpu else None
        shared = _share(
            self.node.host_link_bytes_per_second if self.node else None, self.gpus_of_a_node
        )
        return own if own is None or shared is None else min(own, shared)

    @property
    def nvme_bytes_per_second_per_gpu(self) -> int | None:
        """One GPU's share of what its node's drives read or write [bytes/s]."""
        whole = self.nvme_bandwidth or (self.node.nvme_bytes_per_second if self.node else None)
        return _share(whole, self.gpus_of_a_node)

    @property
    def cpu_bytes_per_second(self) -> int | None:
        """What a node's memory carries [bytes/s]."""
        return self.cpu_bandwidth or (self.node.cpu_memory_bytes_per_second if self.node else None)

    def capacity(self, tier: Literal["cpu", "nvme"]) -> int | None:
        """What a node's memory or its drives hold [bytes], if that is known."""
        if tier == "cpu":
            return self.cpu_memory or (self.node.cpu_memory_bytes if self.node else None)
        return self.nvme_capacity or (self.node.nvme_bytes if self.node else None)

    @property
    def usable_bytes(self) -> int | None:
        """What one GPU can hold [bytes], if that is known."""
        return (
            self.gpu_memory
            if self.gpu_memory is not None
            else self.gpu.usable_bytes
            if self.gpu
            else None
        )


def _share(whole: int | None, gpus: int) -> int | None:
    """One GPU's part of what all of a node send together [bytes/s]."""
    return None if whole is None else max(1, whole // gpus)


class Parallel(Spec):
    """Degrees of model parallelism; what is left of the GPUs is data parallelism. ``interleave``:
    chunks of layers on each pipeline stage.

    ``ep``: ranks over which routed experts are dealt; ``etp``: ranks that divide each of them (tp,
    or as the framework does it, unless told). Both are taken from tp·cp·dp, and divide nothing but
    routed experts.

    ``first_stage_layers`` and ``last_stage_layers``: layers of these pipeline stages, where they
    have others than the stages between.

    ``pipeline_stage``: whose memory is told, 1 the first and ``pp`` the last; of the stage that
    needs most while it is not given.
    """

    tp: Whole = 1
    pp: Whole = 1
    cp: Whole = 1
    ep: Whole = 1
    etp: Whole | None = None
    interleave: Whole = 1
    first_stage_layers: Whole | None = None
    last_stage_layers: Whole | None = None
    pipeline_stage: Whole | None = None
    sequence_parallel: StrictBool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sequence_parallel and self.tp == 1:
            raise FieldError(
                "parallel.sequence_parallel",
                "splits what tensor parallelism replicates: it needs tp above 1",
            )
        for name in ("first_stage_layers", "last_stage_layers"):
            if getattr(self, name) is not None and self.pp == 1:
                raise FieldError(
                    f"parallel.{name}", "is of a pipeline's stage: it needs pp above 1"
                )
        if self.pipeline_stage is not None and self.pipeline_stage > self.pp:
            raise FieldError(
                "parallel.pipeline_stage",
                f"{self.pipeline_stage} is not one of the {self.pp} stages (pp)",
            )
        return self
