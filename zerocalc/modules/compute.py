"""What one micro-batch computes on one rank, from the modules: products with weights, attention's scores, the head, what is recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from zerocalc.formulas.compute import backward_flops, product_flops, scores_flops
from zerocalc.formulas.formula import ceil_div
from zerocalc.ledger import record
from zerocalc.modules.base import Module
from zerocalc.modules.building import steps_of
from zerocalc.modules.layers import Architecture
from zerocalc.modules.rank import Rank
from zerocalc.spec.job import Job


@record
class Work:
    """FLOPs of one micro-batch of the whole model on all ranks that share it: products with weights in forward, those whose weights are trained,
    attention's scores, and what backward computes again.
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
        return backward_flops.function(products_flops=self.products, trained_products_flops=self.trained_products, scores_flops=self.scores)


def work(job: Job, rank: Rank) -> Work | None:
    """The work of one micro-batch; ``None`` where the architecture or the sequence length is not known."""
    arch, training = rank.whole, job.training
    seq = training.seq
    if arch is None or not seq:
        return None
    tokens = training.micro_batch * seq
    adapters = rank.adapters
    layers = sum([count * product_flops(tokens=tokens, elements=_products(modules)) for count, modules in arch.groups])
    scores = sum([count * scores_flops(tokens=tokens, seq=seq, width=width) for count, width in score_widths(job)])
    head = product_flops(tokens=tokens, elements=_products(arch.after) + (arch.vocab * arch.hidden if arch.tied else 0))
    if adapters is None:
        # Where a part is trained and nobody says which, its share of all products.
        trained = (layers + head) * rank.total_trainable // rank.total
        return Work(layers + head, trained, scores, _recomputed(job, arch, layers, scores))
    added = product_flops(tokens=tokens, elements=adapters.active)
    return Work(layers + head + added, added, scores, _recomputed(job, arch, layers + added, scores))


def _products(modules: Iterable[Module]) -> int:
    """Elements of linear layers that one token passes through."""
    return sum(
        [math.prod(shape) * module.used // module.experts for module in modules for _, shape, linear in module.parameter_rows if linear]
    )  # fmt: skip


def score_widths(job: Job) -> list[tuple[int, int]]:
    """(layers, heads times the sizes of a key and a value) of each group of layers that are alike."""
    return [(count, sum([_width(step.type, step.values) for step in steps])) for count, steps in steps_of(job.model)[1]]


def _width(kind: str, values: dict[str, Any]) -> int:
    heads = values.get("heads", 0)
    if kind == "attention":
        head_dim = values.get("head_dim", 0)
        return int(heads * (head_dim + (values.get("value_dim") or head_dim)))
    return int(heads * (values["nope_dim"] + values["rope_dim"] + values["value_dim"])) if kind == "mla" else 0


def _recomputed(job: Job, arch: Architecture, layers: int, scores: int) -> int:
    """FLOPs that backward spends on computing activations again; by operator, products whose results are kept are not among them."""
    how, every = job.training.recompute, job.training.recompute_every
    chosen = ceil_div(arch.layers, every)
    if how == "full":
        return (layers + scores) * chosen // arch.layers
    if how == "operators":
        kept = job.implementation.kept_product
        return layers * (kept - 1) // kept * chosen // arch.layers
    modules = job.training.recompute_modules if how == "selective" else ()
    return scores if "core_attn" in modules else 0
