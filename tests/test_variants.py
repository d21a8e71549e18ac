"""Sharding variants: what they send between nodes and what they hold, beside the figures of the
papers that describe them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc.estimator import estimate
from zerocalc.results import Estimate
from zerocalc.spec.job import Job

PSI = 10**10
MODEL_BYTES = 2 * PSI
"""M of the papers: all weights in 16 bits."""
NODE = 8


def answered(gpus: int = 4096, **zero: Any) -> Estimate:
    job = {
        "model": {"params": PSI},
        "cluster": {"gpus": gpus, "gpus_per_node": NODE},
        "zero": {"stage": 3, **zero},
    }
    return estimate(Job.model_validate(job))


PUBLISHED = [
    ({}, 3.0),
    ({"quantised_weights": True}, 2.0),
    ({"secondary_group": NODE}, 2.0),
    ({"quantised_gradients": True}, 2.25),
    ({"quantised_weights": True, "secondary_group": NODE, "quantised_gradients": True}, 0.75),
]
"""[++] (arXiv 2306.10209), table 1 and §3: traffic between nodes in M, of ZeRO-3, qwZ on both
gathers, hpZ, qgZ, and all of ZeRO++.
"""


@pytest.mark.parametrize(("zero", "multiple"), PUBLISHED)
def test_zero_plus_plus_between_nodes(zero: dict[str, Any], multiple: float) -> None:
    sent = answered(**zero).communication.inter_node_bytes_per_gpu
    assert sent is not None
    # What a node sends; rings of N ranks, and hops of N/8, send (N - 1)/N of a tensor: 512 nodes
    # leave 0.2 % of the limit.
    assert sent * NODE / MODEL_BYTES == pytest.approx(multiple, rel=2.1e-3)


def test_hpz_costs_two_bytes_a_parameter_over_the_group() -> None:
    plain, more = (
        answered(**zero).memory.gpu.peak_bytes for zero in ({}, {"secondary_group": NODE})
    )
    assert more - plain == MODEL_BYTES // NODE


@pytest.mark.parametrize("gpus", [16, 64, 512])
def test_hybrid_sharding_between_hosts(gpus: int) -> None:
    """[FSDP] §3.2.2: 2·M·(W − 1)/(G·W) for each GPU, W hosts of G."""
    hosts = gpus // NODE
    of = answered(gpus, shard_group=NODE)
    assert of.communication.inter_node_bytes_per_gpu == 2 * MODEL_BYTES * (hosts - 1) // (
        NODE * hosts
    )
    assert of.memory.gpu.states_bytes == 16 * PSI // NODE


OFFERED = [
    *(
        (framework, "shard_group")
        for framework in ("paper", "fsdp1", "fsdp2", "torchtitan", "deepspeed")
    ),
    *((framework, "secondary_group") for framework in ("paper", "fsdp2", "deepspeed")),
]


@given(
    offered=st.sampled_from(OFFERED),
    nodes=st.sampled_from([2, 4, 16]),
    group=st.sampled_from([1, 2, 4, 8, 16]),
    accumulation=st.integers(1, 3),
)
def test_variants_trade_memory_for_traffic_between_nodes(
    offered: tuple[str, str], nodes: int, group: int, accumulation: int
) -> None:
    framework, variant = offered
    model = {"kind": "llama", "layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000}
    given = {
        "model": model,
        "framework": framework,
        "cluster": {"gpus": nodes * NODE},
        "training": {"accumulation": accumulation},
    }
    plain = estimate(Job.model_validate({**given, "zero": {"stage": 3}}))
    other = estimate(Job.model_validate({**given, "zero": {"stage": 3, variant: group}}))
    sent, less = (of.communication.inter_node_bytes_per_gpu or 0 for of in (plain, other))
    if variant == "secondary_group" and group <= NODE:
        assert less <= sent
    if variant == "shard_group" and group <= NODE:
        assert {
            call.op for call in other.communication.collectives if call.fabric == "network"
        } == {"all_reduce"}
    assert other.memory.gpu.states_bytes >= plain.memory.gpu.states_bytes
    for of in (plain, other):
        for call in of.communication.collectives:
            assert call.ranks > 1 or call.group == "host"
            assert (call.fabric == "node") == (call.ranks * call.spacing <= NODE)


def test_stage_0_reduces_over_all_ranks_whatever_the_others_do() -> None:
    job = Job.model_validate(
        {"model": {"params": PSI}, "cluster": {"gpus": 64}, "zero": {"shard_group": 8}}
    )
    assert {call.ranks for call in estimate(job, 0).communication.collectives} == {64}
    assert {call.ranks for call in estimate(job, 1).communication.collectives} == {8}
