"""What a rank holds, with what a framework rounds its parameters up by."""

from __future__ import annotations

from zerocalc.ledger import replaced
from zerocalc.model.architecture import shapes
from zerocalc.sharding.gather_units import rounded_up
from zerocalc.sharding.padding import WHOLE_MODEL, Rule, padded
from zerocalc.sharding.rank import Rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES


def rounded(holds: Rank, job: Job, rule: Rule) -> Rank:
    """A rank whose parameters are rounded up as a framework's stage does it, tensor by tensor; as
    it is where tensors are cut.

    What is rounded up as one whole is what is trained: a frozen base lies beside it.
    """
    arch, added = holds.arch, holds.adapters
    if holds.parts:
        return replaced(holds, parts=tuple([rounded(part, job, rule) for part in holds.parts]))
    if holds.group == "edp" and rule == "first_dimension":
        # experts fewer than ranks are cut along another dimension (torchtitan 0.2.2,
        # models/llama4/infra/parallelize.py)
        return holds
    if rule == "none" or arch is None or holds.split > 1:
        return holds
    item_bytes = DTYPE_BYTES[job.gather_dtype]
    if rule in WHOLE_MODEL:
        every = (
            added.shapes
            if added is not None
            else [
                shape for count, modules in arch.all_groups() for shape in shapes(modules) * count
            ]
        )
        amount = padded(every, rule, holds.shards, item_bytes)
        return replaced(
            holds,
            padded=holds.frozen + amount,
            padded_adapters=amount if added is not None else 0,
            rule=rule,
        )
    cut = rounded_up(holds.units, arch, rule, holds.shards, item_bytes, added)
    own = sum([unit.count * unit.adapters for unit in cut])
    return replaced(
        holds,
        units=cut,
        padded=own + sum([unit.count * unit.padded for unit in cut]),
        padded_adapters=own,
        rule=rule,
    )
