"""The machine: how many GPUs, of which kind, in which nodes, over which links."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc import presets
from zerocalc.quantities import Bytes, Capacity, Flops, Fraction, Rate, Whole, format_gib
from zerocalc.spec.base import LONGEST_PATH, FieldError, Spec, from_preset

DEFAULT_GPUS_PER_NODE = 8
"""DGX A100, DGX H100, HGX and the large clouds' nodes; see presets/nodes."""


KERNEL_EFFICIENCY = 0.55
"""Fraction of the dense peak that kernels reach while they run, if a GPU's preset has none."""
KERNEL_EFFICIENCY_NOTE = (
    "an A100's in [SP] Table 5, over whole steps of large models; taken as the same here"
)


class Gpu(Spec):
    """An accelerator. Bandwidths are one-way and per GPU; a figure without a source is left out."""

    title: Annotated[str, Field(max_length=200)]
    """Name of the product, for tables."""
    source: Annotated[str, Field(max_length=2000)]
    """Where each figure was read or measured."""
    usable_bytes: Capacity | None = None
    """Memory that a process can allocate on the GPU [bytes], less than the nominal capacity.
    Default: unknown, and then the fit cannot be judged.
    """
    bf16_dense_flops_per_second: Flops | None = None
    """Peak of dense bf16 or fp16 matmuls [FLOP/s]. Default: unknown, and then no time is estimated.
    """
    memory_bytes_per_second: Rate | None = None
    """Bandwidth of the GPU's memory [bytes/s], which limits the optimizer step. Default: unknown,
    and then no time is estimated.
    """
    scale_up_bytes_per_second: Rate | None = None
    """Bandwidth to the other GPUs of the node over NVLink or its like [bytes/s]. Default: the
    bandwidth of PCIe.
    """
    scale_up: Literal["all-to-all", "pairs", "torus"] | None = None
    """Topology of the links inside a node. For information: no figure depends on it."""
    pcie_bytes_per_second: Rate | None = None
    """Bandwidth to the CPU [bytes/s]. Default: unknown, and then no time is estimated for
    offloading.
    """
    runtime_bytes: Bytes | None = None
    """The CUDA context: memory in use before the first tensor [bytes]. Default: not counted."""
    cublas_workspace_bytes: Bytes | None = None
    """Workspace of one cuBLAS handle [bytes]; PyTorch has two. Counted if the cluster's
    ``workspaces`` is set. Default: unknown.
    """
    gemm_workspace_bytes: Bytes | None = None
    """Workspace of Transformer Engine's own matmuls [bytes], for implementations that have one.
    Counted if the cluster's ``workspaces`` is set. Default: unknown.
    """
    runtime_note: Annotated[str, Field(max_length=500)] | None = None
    """An assumption to print with ``runtime_bytes``. Default: none."""
    kernel_efficiency: Fraction | None = None
    """Fraction of the dense bf16 peak that the kernels of large models reach while they run.
    Default: 0.55. Changes compute time.
    """
    kernel_efficiency_note: Annotated[str, Field(max_length=500)] | None = None
    """Where ``kernel_efficiency`` comes from. Default: ``source``."""
    note: Annotated[str, Field(max_length=500)] | None = None
    """A remark of the preset. Default: none."""

    @property
    def runtime_words(self) -> str:
        """The memory of the CUDA context, and the assumption behind it, in words."""
        return f"CUDA context {format_gib(self.runtime_bytes or 0)}" + (
            f" ({self.runtime_note})" if self.runtime_note else ""
        )


class Node(Spec):
    """A server: its GPUs, its NICs, its CPU memory and its NVMe drives. Bandwidths are one-way and
    for the whole node.
    """

    title: Annotated[str, Field(max_length=200)]
    """Name of the product, for tables."""
    source: Annotated[str, Field(max_length=2000)]
    """Where each figure was read."""
    gpus: Whole
    """GPUs in the node."""
    gpu: Annotated[str, Field(max_length=LONGEST_PATH)]
    """Preset name, or path, of the GPU in the node."""
    network_bytes_per_second: Rate | None = None
    """Bandwidth of all NICs that serve GPUs together [bytes/s]. Default: unknown, and then no time
    is estimated for inter-node traffic.
    """
    network_cards: Whole | None = None
    """NICs that serve GPUs. Default: unknown; otherwise traffic per NIC is given too."""
    cpu_memory_bytes: Capacity | None = None
    """CPU memory [bytes]. Default: unknown, and then offloading to the CPU is assumed to fit."""
    cpu_memory_bytes_per_second: Rate | None = None
    """Bandwidth of CPU memory [bytes/s], which limits an offloaded optimizer step. Default:
    unknown.
    """
    host_link_bytes_per_second: Rate | None = None
    """Bandwidth between all GPUs and the CPUs together [bytes/s], if that is less than the sum of
    their links. Default: each GPU has its link's full bandwidth.
    """
    nvme_bytes: Capacity | None = None
    """Capacity of the NVMe drives together [bytes]. Default: unknown, and then nothing can be
    offloaded to NVMe.
    """
    nvme_bytes_per_second: Rate | None = None
    """Read or write bandwidth of the NVMe drives together [bytes/s]. Default: unknown."""
    note: Annotated[str, Field(max_length=500)] | None = None
    """A remark of the preset. Default: none."""


def _title_of_gpu(name: str) -> str | None:
    """The title of a node's GPU; ``None`` if that was a file that no longer exists."""
    try:
        title = presets.load("gpus", name).get("title")
    except presets.PresetError:
        return None
    return title if isinstance(title, str) else None


class Cluster(Spec):
    """The GPUs of a job and the nodes they are in. Figures given here override the presets'."""

    gpus: Whole
    """GPUs of the job, in all nodes together."""
    gpu: Annotated[Gpu, from_preset("gpus")] | None = None
    """The kind of GPU: a preset's name, a TOML file's path, or a table. Default: the node's GPU;
    without either, neither fit nor time is known.
    """
    gpu_memory: Capacity | None = None
    """Memory that a process can allocate on one GPU [bytes]. Default: the GPU preset's
    ``usable_bytes``. Decides whether a job fits.
    """
    node: Annotated[Node, from_preset("nodes")] | None = None
    """The kind of node: a preset's name, a TOML file's path, or a table. Default: none."""
    gpus_per_node: Whole = DEFAULT_GPUS_PER_NODE
    """GPUs per node. Default: the node's, or 8. Decides which traffic is inter-node."""
    workspaces: StrictBool = False
    """Whether the workspaces of cuBLAS and Transformer Engine are counted. Default: no."""
    cublas_workspace: Bytes | None = None
    """Workspace of one cuBLAS handle [bytes], as CUBLAS_WORKSPACE_CONFIG sets it. Default: the
    GPU preset's.
    """
    intra_node: Rate | None = None
    """Bandwidth from one GPU to the others in its node, one-way [bytes/s]. Default: the GPU
    preset's.
    """
    inter_node: Rate | None = None
    """Bandwidth of all NICs of a node together, one-way [bytes/s]. Default: the node preset's."""
    cpu_memory: Capacity | None = None
    """CPU memory of one node [bytes]. Default: the node preset's."""
    cpu_bandwidth: Rate | None = None
    """Bandwidth of one node's CPU memory [bytes/s]. Default: the node preset's."""
    nvme_capacity: Capacity | None = None
    """Capacity of one node's NVMe drives [bytes]. Default: the node preset's."""
    nvme_bandwidth: Rate | None = None
    """Read or write bandwidth of one node's NVMe drives together [bytes/s]. Default: the node
    preset's.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_node(cls, data: Any) -> Any:
        """GPU and GPUs per node from the node, unless they are given."""
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
        """Fraction of the dense peak that kernels reach on this GPU, and where that comes from."""
        gpu = self.gpu
        if gpu is None or gpu.kernel_efficiency is None:
            return KERNEL_EFFICIENCY, KERNEL_EFFICIENCY_NOTE
        return gpu.kernel_efficiency, gpu.kernel_efficiency_note or gpu.source

    def peak_flops_per_second(self, dtype: str) -> int | None:
        """The GPU's dense peak [FLOP/s] in a dtype; ``None`` if unknown, as in fp32."""
        return (
            self.gpu.bf16_dense_flops_per_second if self.gpu and dtype in ("bf16", "fp16") else None
        )

    @property
    def intra_node_bytes_per_second(self) -> int | None:
        """Bandwidth from one GPU to the others of its node [bytes/s, one-way]: the scale-up link's,
        or PCIe's without one; ``None`` if unknown.
        """
        gpu = self.gpu
        return self.intra_node or (
            gpu.scale_up_bytes_per_second or gpu.pcie_bytes_per_second if gpu else None
        )

    @property
    def inter_node_bytes_per_second(self) -> int | None:
        """Bandwidth of a node's NICs together [bytes/s, one-way]; ``None`` if unknown."""
        return self.inter_node or (self.node.network_bytes_per_second if self.node else None)

    @property
    def inter_node_bytes_per_second_per_gpu(self) -> int | None:
        """One GPU's share of the NICs' bandwidth [bytes/s, one-way]; ``None`` if unknown."""
        return _share(self.inter_node_bytes_per_second, self.gpus_per_node)

    @property
    def network_cards(self) -> int | None:
        """NICs of a node that serve its GPUs; ``None`` if unknown."""
        return self.node.network_cards if self.node else None

    @property
    def gpus_of_a_node(self) -> int:
        """GPUs of the job in one node."""
        return min(self.gpus_per_node, self.gpus)

    def bytes_per_card(self, bytes_per_gpu: int) -> int | None:
        """Bytes that each NIC of a node sends if each of its GPUs sends ``bytes_per_gpu`` to other
        nodes; ``None`` if the number of NICs is unknown.
        """
        return (
            -(-bytes_per_gpu * self.gpus_of_a_node // self.network_cards)
            if self.network_cards
            else None
        )

    @property
    def host_bytes_per_second_per_gpu(self) -> int | None:
        """Bandwidth between one GPU and the CPU while all GPUs of the node use it [bytes/s,
        one-way]; ``None`` if unknown.
        """
        own = self.gpu.pcie_bytes_per_second if self.gpu else None
        shared = _share(
            self.node.host_link_bytes_per_second if self.node else None, self.gpus_of_a_node
        )
        return own if own is None or shared is None else min(own, shared)

    @property
    def nvme_bytes_per_second_per_gpu(self) -> int | None:
        """One GPU's share of the NVMe bandwidth [bytes/s]; ``None`` if unknown."""
        whole = self.nvme_bandwidth or (self.node.nvme_bytes_per_second if self.node else None)
        return _share(whole, self.gpus_of_a_node)

    @property
    def cpu_bytes_per_second(self) -> int | None:
        """Bandwidth of one node's CPU memory [bytes/s]; ``None`` if unknown."""
        return self.cpu_bandwidth or (self.node.cpu_memory_bytes_per_second if self.node else None)

    def capacity(self, tier: Literal["cpu", "nvme"]) -> int | None:
        """Capacity of one node's CPU memory or NVMe drives [bytes]; ``None`` if unknown."""
        if tier == "cpu":
            return self.cpu_memory or (self.node.cpu_memory_bytes if self.node else None)
        return self.nvme_capacity or (self.node.nvme_bytes if self.node else None)

    @property
    def usable_bytes(self) -> int | None:
        """Memory that a process can allocate on one GPU [bytes]; ``None`` if unknown."""
        return (
            self.gpu_memory
            if self.gpu_memory is not None
            else self.gpu.usable_bytes
            if self.gpu
            else None
        )


def _share(whole: int | None, gpus: int) -> int | None:
    """One GPU's share of a node's bandwidth [bytes/s]; ``None`` if that is unknown."""
    return None if whole is None else max(1, whole // gpus)
