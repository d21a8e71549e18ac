"""How frameworks round parameters up so that every rank's shard is alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from zerocalc import model as models
from zerocalc.formulas.formula import ceil_div
from zerocalc.spec.job import Job

Shape = tuple[int, ...]
Rule = Literal["none", "first_dimension", "tensor", "flat", "flat_twice", "aligned"]
FLAT_ALIGNMENT_BYTES = 16
"""FSDP1 starts each tensor of a flat parameter at a multiple of so many bytes
(torch/distributed/fsdp/_flat_param.py).
"""
ALIGNED_START, ALIGNED_END = 64, 128
"""Elements: where Megatron starts a parameter in its buffer, and a factor of where a bucket ends
(core/distributed/param_and_grad_buffer.py).
"""


def padded(shapes: Iterable[Shape], rule: Rule, shards: int, item_bytes: int) -> int:
    """Elements of some tensors, gathered in a dtype of ``item_bytes``, as a framework shards them
    over ``shards`` ranks.

    ``first_dimension`` rounds each tensor's first size up (FSDP2), ``tensor`` each tensor
    (DeepSpeed stage 3), ``flat`` all together, in the order in which they are listed, with each at
    an aligned start (FSDP1), ``flat_twice`` all together to twice the ranks (DeepSpeed stages 1 and
    2), ``aligned`` as Megatron's buffers.

    >>> padded([(1001, 60)], "first_dimension", 8, 2)  # 126 rows on each of 8 ranks
    60480
    """
    if rule == "first_dimension":
        return sum([_up(shape[0], shards) * math.prod(shape[1:]) for shape in shapes])
    sizes = [math.prod(shape) for shape in shapes]
    if rule == "tensor":
        return sum([_up(size, shards) for size in sizes])
    if rule == "flat":
        return _up(
            sum([_up(size, FLAT_ALIGNMENT_BYTES // item_bytes) for size in sizes[:-1]])
            + sum(sizes[-1:]),
            shards,
        )
    if rule == "flat_twice":
        return _up(sum(sizes), 2 * shards)
    if rule == "aligned":
        return _up(sum([_up(size, ALIGNED_START) for size in sizes]), math.lcm(shards, ALIGNED_END))
    return sum(sizes)


def _up(amount: int, multiple: int) -> int:
    return ceil_div(amount, multiple) * multiple


WHOLE_MODEL: frozenset[Rule] = frozenset({"flat_twice", "aligned"})
"""Rules that round once, for the whole model, and not unit by unit."""


def added_words(job: Job) -> str | None:
    """What a framework adds to the vocabulary and is not counted, in words; ``None`` where it adds
    nothing.

    Megatron-LM rounds it up to whole multiples on each tensor-parallel rank (training/arguments.py:
    make_vocab_size_divisible_by).
    """
    words, multiple = job.model.words, (job.framework.vocab_multiple or 0) * job.parallel.tp
    if not words or not multiple or words % multiple == 0:
        return None
    after = models.build.steps_of(job.model)[2]
    head = next(step.values for step in reversed(after) if step.type == "head")
    whole = _up(words, multiple)
    more = ceil_div((whole - words) * int(head["dim"]), job.parallel.tp)
    head_too = "" if head.get("tied") and job.parallel.pp == 1 else " and again in its head"
    return (
        f"{job.framework.name} pads the vocabulary from {words:,} to {whole:,}, a multiple "
        f"of {job.framework.vocab_multiple}·tp: {more:,} extra parameters in a rank's "
        f"embedding{head_too}, not counted"
    )
