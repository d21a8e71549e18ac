"""What the tables of [Off] and [Inf] show: what is kept elsewhere than on the GPU, and the working
memory that is left there.
"""

from __future__ import annotations

from fractions import Fraction

from zerocalc.estimator import estimate
from zerocalc.formulas import published
from zerocalc.ledger import STATE_KINDS
from zerocalc.papers.jobs import Ours, bare, by

TRIAL_PARAMETERS = 10**9
"""For each GPU, of a model whose bytes a parameter are asked for: what is rounded up is lost in so
many.
"""


def states_both_gradients(*, layers: int, hidden: int) -> Ours:
    """Bytes of all model states with 16-bit and fp32 gradients."""
    count = published.transformer_parameters(layers=layers, hidden=hidden)
    value = estimate(bare(count, 1, recipe="mixed-adam-both-grads"), 0).memory.gpu.states_bytes
    return Ours(Fraction(value), published.model_state_bytes.text)


def node_activations(
    *, layers: int, hidden: int, heads: int, seq: int, micro_batch: int, gpus_per_node: int
) -> Ours:
    """Bytes of all activations of a node's GPUs, nothing recomputed, by [Inf]'s count."""
    formula = published.activation_working_memory
    layer = formula(
        micro_batch=micro_batch, seq=seq, checkpoint_interval=1, hidden=hidden, heads=heads
    )
    return Ours(Fraction(layer * layers * gpus_per_node), "b·s·L·(16·h + 2·a·s)·G")


def node_checkpoints(*, layers: int, hidden: int, seq: int, batch: int) -> Ours:
    """Bytes of a node's checkpoints for ``batch`` sequences, one checkpoint a layer."""
    return by(
        published.activation_checkpoint_bytes,
        micro_batch=batch,
        seq=seq,
        hidden=hidden,
        layers=layers,
        checkpoint_interval=1,
    )


def state_working_memory(*, hidden: int) -> Ours:
    """Bytes of the largest linear's weights and gradients."""
    return by(published.model_state_working_memory, hidden=hidden)


def activation_working_memory(*, hidden: int, heads: int, seq: int, micro_batch: int) -> Ours:
    """Bytes of one layer's activations."""
    return by(
        published.activation_working_memory,
        micro_batch=micro_batch,
        seq=seq,
        checkpoint_interval=1,
        hidden=hidden,
        heads=heads,
    )


def kept_on_gpu(*, parameters: int, away: str) -> Ours:
    """Bytes per parameter on the one GPU there is, with gradients, the optimizer or both on the
    host.
    """
    answer = estimate(
        bare(
            parameters,
            1,
            zero={"stage": 2, "offload_optimizer": "cpu" if away == "both" else "none"},
        )
    )
    left = sum(
        term.bytes
        for term in answer.memory.gpu.terms
        if term.kind in STATE_KINDS and term.kind != away
    )
    return Ours(Fraction(left, parameters), "16·Ψ less what is away")


def reduced_by(*, parameters: int, away: str) -> Ours:
    """How many times less that is than with all on the GPU."""
    return Ours(16 / kept_on_gpu(parameters=parameters, away=away).value, None)


def host_traffic(*, parameters: int, gpus: int) -> Ours:
    """Bytes per parameter of a GPU's share that cross its host link in a step, gradients and
    optimizer on the host.
    """
    sent = estimate(
        bare(parameters, gpus, zero={"stage": 2, "offload_optimizer": "cpu"})
    ).communication.host_bytes_per_gpu
    return Ours(Fraction(sent * gpus, parameters), "2·Ψ + 2·Ψ")


def largest_on_node(
    *, memory: int, gpus: int, stage: int, optimizer: str = "none", params: str = "none"
) -> Ours:
    """Parameters of the largest model whose states fit the tier, of ``memory`` bytes for all GPUs
    of a node, that holds most of them.
    """
    trial = TRIAL_PARAMETERS * gpus
    zero = {"stage": stage, "offload_optimizer": optimizer, "offload_params": params}
    held = estimate(
        bare(
            trial,
            gpus,
            cluster={"gpus": gpus, "gpus_per_node": gpus, "nvme_capacity": "1PB"},
            zero=zero,
        )
    ).memory
    tier = held.nvme or (held.cpu if params == "cpu" else None)
    return Ours(
        Fraction(memory * trial, tier.bytes_per_node if tier else held.gpu.states_bytes * gpus),
        None,
    )


QUANTITIES = (
    states_both_gradients,
    node_activations,
    node_checkpoints,
    state_working_memory,
    activation_working_memory,
    kept_on_gpu,
    reduced_by,
    host_traffic,
    largest_on_node,
)
"""What a table's file can name."""
