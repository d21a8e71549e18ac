"""What DeepSpeed's memory estimators compute for model states, so that their output can be
reconciled with ours.

Source: deepspeedai/DeepSpeed, runtime/zero (stage_1_and_2.py, stage3.py) and
docs/code-docs/source/memory.rst. Host figures are per node and carry the estimators' factor of 1.5
for buffers. The estimators divide by 2^30 and print "GB". Not counted by them: activations,
buckets, gathered layers.
"""

from typing import NamedTuple

from zerocalc.formulas.formula import Formula, formula

STAGE_2 = "DeepSpeed's estimator for stage 2"
STAGE_3 = "DeepSpeed's estimator for stage 3"


@formula("2·Ψ", f"{STAGE_2}, optimizer on the host", Ψ="parameters")
def stage2_offload_gpu(*, parameters: int) -> int:
    """GPU bytes with the optimizer on the host.

    >>> round(stage2_offload_gpu(parameters=2_851_000_000) / 2**30, 2)
    5.31
    """
    return 2 * parameters


@formula("⌊2·Ψ + 18·Ψ/N⌋", STAGE_2, Ψ="parameters", N="gpus")
def stage2_gpu(*, parameters: int, gpus: int) -> int:
    """GPU bytes without offload, as current releases count.

    >>> stage2_gpu(parameters=1_557_611_200, gpus=8)
    6619847600
    """
    return 2 * parameters + 18 * parameters // gpus


@formula("⌊4·Ψ + 16·Ψ/N⌋", f"{STAGE_2}, older releases", Ψ="parameters", N="gpus")
def stage2_gpu_older(*, parameters: int, gpus: int) -> int:
    """GPU bytes without offload, as older releases and the documentation's example count.

    >>> round(stage2_gpu_older(parameters=2_851_000_000, gpus=8) / 2**30, 2)
    15.93
    """
    return 4 * parameters + 16 * parameters // gpus


@formula("⌊1.5·Ψ·max(4·N, 16)⌋", f"{STAGE_2}, optimizer on the host", Ψ="parameters", N="gpus")
def stage2_offload_host(*, parameters: int, gpus: int) -> int:
    """Host bytes with the optimizer on the host; ``gpus`` are those of all nodes.

    >>> round(stage2_offload_host(parameters=2_851_000_000, gpus=8) / 2**30, 2)
    127.45
    """
    return 3 * parameters * max(4 * gpus, 16) // 2


@formula("6·Ψ·G", f"{STAGE_2}; stage 3 without zero.Init", Ψ="parameters", G="gpus_per_node")
def loading_host(*, parameters: int, gpus_per_node: int) -> int:
    """Host bytes while every process of a node loads the whole model in fp32.

    >>> round(loading_host(parameters=2_851_000_000, gpus_per_node=8) / 2**30, 2)
    127.45
    """
    return 6 * parameters * gpus_per_node


@formula("4·λ", f"{STAGE_3}, optimizer and parameters on the host", λ="largest_layer")
def stage3_all_offload_gpu(*, largest_layer: int) -> int:
    """GPU bytes with optimizer and parameters on the host: the largest leaf module, gathered.

    >>> round(stage3_all_offload_gpu(largest_layer=32_000_000) / 2**30, 2)
    0.12
    """
    return 4 * largest_layer


@formula(
    "⌊4·λ + 2·Ψ/N⌋",
    f"{STAGE_3}, optimizer on the host",
    λ="largest_layer",
    Ψ="parameters",
    N="gpus",
)
def stage3_offload_gpu(*, largest_layer: int, parameters: int, gpus: int) -> int:
    """GPU bytes with the optimizer on the host.

    >>> round(stage3_offload_gpu(largest_layer=32_000_000, parameters=2_851_000_000,
    ...     gpus=8) / 2**30, 2)
    0.78
    """
    return 4 * largest_layer + 2 * parameters // gpus


@formula("⌊4·λ + 18·Ψ/N⌋", STAGE_3, λ="largest_layer", Ψ="parameters", N="gpus")
def stage3_gpu(*, largest_layer: int, parameters: int, gpus: int) -> int:
    """GPU bytes without offload.

    >>> round(stage3_gpu(largest_layer=32_000_000, parameters=2_851_000_000, gpus=8) / 2**30, 2)
    6.09
    """
    return 4 * largest_layer + 18 * parameters // gpus


@formula(
    "⌊1.5·18·Ψ/n⌋",
    f"{STAGE_3}, optimizer and parameters on the host, with zero.Init",
    Ψ="parameters",
    n="nodes",
)
def stage3_all_offload_host(*, parameters: int, nodes: int) -> int:
    """Host bytes with optimizer and parameters on the host.

    >>> round(stage3_all_offload_host(parameters=2_851_000_000, nodes=1) / 2**30, 2)
    71.69
    """
    return 27 * parameters // nodes


@formula(
    "⌊1.5·16·Ψ/n⌋", f"{STAGE_3}, optimizer on the host, with zero.Init", Ψ="parameters", n="nodes"
)
def stage3_offload_host(*, parameters: int, nodes: int) -> int:
    """Host bytes with the optimizer on the host.

    >>> round(stage3_offload_host(parameters=2_851_000_000, nodes=1) / 2**30, 2)
    63.72
    """
    return 24 * parameters // nodes


@formula("6·λ·G", f"{STAGE_3}, with zero.Init", λ="largest_layer", G="gpus_per_node")
def stage3_host(*, largest_layer: int, gpus_per_node: int) -> int:
    """Host bytes without offload: every process of a node loads one layer at a time.

    >>> round(stage3_host(largest_layer=32_000_000, gpus_per_node=8) / 2**30, 2)
    1.43
    """
    return 6 * largest_layer * gpus_per_node


@formula(
    "⌊1.5·Ψ·max(4·G, 18/n)⌋",
    f"{STAGE_3}, optimizer and parameters on the host, without zero.Init",
    Ψ="parameters",
    G="gpus_per_node",
    n="nodes",
)
def stage3_all_offload_host_loading(*, parameters: int, gpus_per_node: int, nodes: int) -> int:
    """Host bytes with optimizer and parameters on the host, or those of loading the model whole
    where they are more.

    >>> round(stage3_all_offload_host_loading(parameters=2_851_000_000, gpus_per_node=8,
    ...     nodes=1) / 2**30, 2)
    127.45
    """
    return 3 * parameters * max(4 * gpus_per_node * nodes, 18) // (2 * nodes)


@formula(
    "⌊1.5·Ψ·max(4·G, 16/n)⌋",
    f"{STAGE_3}, optimizer on the host, without zero.Init",
    Ψ="parameters",
    G="gpus_per_node",
    n="nodes",
)
def stage3_offload_host_loading(*, parameters: int, gpus_per_node: int, nodes: int) -> int:
    """Host bytes with the optimizer on the host, or those of loading the model whole where they are
    more.

    >>> round(stage3_offload_host_loading(parameters=2_851_000_000, gpus_per_node=8,
    ...     nodes=1) / 2**30, 2)
    127.45
    """
    return 3 * parameters * max(4 * gpus_per_node * nodes, 16) // (2 * nodes)


class Estimator(NamedTuple):
    """The two formulas of one of the estimators' rows."""

    gpu: Formula[...]
    host: Formula[...]


ESTIMATORS: dict[tuple[int, str, bool], Estimator] = {
    (2, "optimizer", False): Estimator(stage2_offload_gpu, stage2_offload_host),
    (2, "none", False): Estimator(stage2_gpu, loading_host),
    (3, "all", True): Estimator(stage3_all_offload_gpu, stage3_all_offload_host),
    (3, "all", False): Estimator(stage3_all_offload_gpu, stage3_all_offload_host_loading),
    (3, "optimizer", True): Estimator(stage3_offload_gpu, stage3_offload_host),
    (3, "optimizer", False): Estimator(stage3_offload_gpu, stage3_offload_host_loading),
    (3, "none", True): Estimator(stage3_gpu, stage3_host),
    (3, "none", False): Estimator(stage3_gpu, loading_host),
}
"""By stage, what is offloaded (``none``, ``optimizer``, ``all``: optimizer and parameters), and
whether zero.Init is used (stage 3 only).
"""


def evaluate(
    formula: Formula[...], *, parameters: int, largest_layer: int, gpus_per_node: int, nodes: int
) -> int:
    """One of `ESTIMATORS`' formulas [bytes], each given what it takes.

    >>> evaluate(ESTIMATORS[3, "none", True].gpu, parameters=2_851_000_000,
    ...     largest_layer=32_000_000, gpus_per_node=8, nodes=1)
    6542750000
    """
    given = {
        "parameters": parameters,
        "largest_layer": largest_layer,
        "gpus_per_node": gpus_per_node,
        "nodes": nodes,
        "gpus": gpus_per_node * nodes,
    }
    return formula(**{name: given[name] for name in formula.symbols.values()})
