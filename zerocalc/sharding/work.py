"""What one micro-batch computes on one rank, from the modules: products with weights, attention's
scores, the head, what is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from zerocalc.formulas.compute import backward_flops, product_flops, scores_flops
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.model.architecture import Architecture
from zerocalc.model.module import Module
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job


@record
class Work:
    """FLOPs of one micro-batch of a model, or of a part of its layers, on all ranks that share it:
    products with weights in forward, those whose weights are trained, attention's scores, and what
    backward computes again.
    """

    products: int
    trained_products: int
    scores: int
    recomputed: int

    @property
    def forward(self) -> int:
        """All of the forward pass."""
        return self.products + self.scores

    @property
    def backward(self) -> int:
        """All of the backward pass but what it computes again."""
        return backward_flops.function(
            products_flops=self.products,
            trained_products_flops=self.trained_products,
            scores_flops=self.scores,
        )


def work(job: Job, rank: Rank) -> Work | None:
    """The work of one micro-batch; ``None`` where the architecture or the sequence length is not
    known.
    """
    return (
        None
        if rank.whole is None or not job.training.seq
        else _work(job, rank, rank.whole, job.training.seq)
    )


def stage_work(job: Job, rank: Rank) -> Work | None:
    """That of the rank's pipeline stage alone, on all ranks that share the stage; ``None`` as for
    the whole.
    """
    seq = job.training.seq
    return None if rank.arch is None or not seq else _work(job, rank, rank.arch, seq)


def _work(job: Job, rank: Rank, arch: Architecture, seq: int) -> Work:
    tokens = job.training.micro_batch * seq
    adapters = rank.adapters
    layers = sum(
        [
            count * product_flops(tokens=tokens, elements=_products(modules))
            for count, modules in arch.groups
        ]
    )
    scores = sum(
        [
            count * scores_flops(tokens=tokens, seq=seq, width=score_width(modules))
            for count, modules in arch.groups
        ]
    )
    head = product_flops(
        tokens=tokens,
        elements=_products(arch.after) + (arch.vocab * arch.hidden if arch.tied else 0),
    )
    if adapters is None:
        # Where a part is trained and nobody says which, its share of all products.
        trained = (layers + head) * rank.total_trainable // rank.total
        return Work(layers + head, trained, scores, _recomputed(job, arch, layers, scores))
    added = product_flops(tokens=tokens, elements=adapters.active)
    return Work(
        layers + head + added, added, scores, _recomputed(job, arch, layers + added, scores)
    )


def _products(modules: Iterable[Module]) -> int:
    """Elements of linear layers that one token passes through."""
    return sum(
        [
            math.prod(shape) * module.used // module.experts
            for module in modules
            for _, shape, linear in module.parameter_rows
            if linear
        ]
    )


def score_width(modules: Iterable[Module]) -> int:
    """Heads times the sizes of a key and a value, of all attention in a layer."""
    return sum(
        [heads * (key + value) for heads, _, key, value in [module.attends for module in modules]]
    )


def _recomputed(job: Job, arch: Architecture, layers: int, scores: int) -> int:
    """FLOPs that backward spends on computing activations again; by operator, products whose
    results are kept are not among them.
    """
    how, every = job.training.recompute, job.training.recompute_every
    if not arch.layers:
        return 0
    chosen = ceil_div(arch.layers, every)
    if how == "full":
        return (layers + scores) * chosen // arch.layers
    if how == "operators":
        kept = job.implementation.kept_product
        return layers * (kept - 1) // kept * chosen // arch.layers
    modules = job.training.recompute_modules if how == "selective" else ()
    return scores if "core_attn" in modules else 0
