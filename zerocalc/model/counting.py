"""Parameter counts of a model, by component, from the one list of tensors."""

from __future__ import annotations

import math

from zerocalc import model as models
from zerocalc.counts import Counts, StoredBytes
from zerocalc.model.architecture import Architecture
from zerocalc.model.build import architecture
from zerocalc.model.module import Component, Module
from zerocalc.spec.base import FieldError
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import DTYPE_BYTES, StoredDtype

COMPONENTS: tuple[Component, ...] = (
    "embedding",
    "head",
    "attention",
    "mlp",
    "experts",
    "norms",
    "other",
)


STORED_DTYPE: StoredDtype = "bf16"
"""In which checkpoints are kept unless their config says so."""


def count_parameters(model: Model) -> Counts:
    """Count a model tensor by tensor.

    Raises `ValueError` for a bare number of parameters, which has no tensors.
    """
    if not isinstance(model, Model):
        hint = "; its model is job.model" if hasattr(model, "model") else ""
        raise TypeError(
            "count_parameters takes a Model, a preset's name or a path, not "
            f"{type(model).__name__}{hint}"
        )
    arch = architecture(model)
    if arch is None:
        raise ValueError(
            "a bare number of parameters has no tensors to count: give an architecture"
        )
    components: dict[str, int] = dict.fromkeys(COMPONENTS, 0)
    for count, modules in arch.all_groups():
        for module in modules:
            components[module.component] += module.parameter_elements * count
    active = arch.active_elements
    blocks = [amount for _, amount in arch.group_elements]
    notes = list(model.assumed)
    added, adapters_bytes = 0, 0
    if model.lora is not None:
        lora = models.adapters.adapters(model, arch)
        if lora is not None:
            added, adapters_bytes = lora.total, lora.total * DTYPE_BYTES[model.lora.dtype]
            active += lora.active
            blocks = [amount + extra for amount, extra in zip(blocks, lora.groups, strict=True)]
            notes += [*model.lora.assumed, *lora.notes]
    kept = _stored(model, arch, components, notes, adapters_bytes)
    size = sum(kept.components.values()) + adapters_bytes if kept else None
    total = arch.parameters + added
    return Counts(
        1,
        total,
        added or model.trainable or total,
        active,
        components,
        largest_leaf(arch),
        max(blocks, default=0),
        size,
        kept,
        tuple(notes),
        added,
    )


def _stored(
    model: Model,
    arch: Architecture,
    components: dict[str, int],
    notes: list[str],
    adapters_bytes: int,
) -> StoredBytes | None:
    """The model as a checkpoint keeps it; what is not known, or taken on trust, becomes a note."""
    if model.dtype is None:
        what = "stored" if model.quantised is None else "what is not quantised stored"
        notes.append(f"{what} in {STORED_DTYPE}, {DTYPE_BYTES[STORED_DTYPE]} bytes a parameter")
    dtype = model.dtype or STORED_DTYPE
    size = DTYPE_BYTES[dtype]
    if model.quantised is None:
        sizes = {component: count * size for component, count in components.items()}
        return StoredBytes(dtype, dtype, sizes, 0, 0, 0, 0, 0, sum(sizes.values()), adapters_bytes)
    try:
        base = models.checkpoint_bytes.stored(model, arch)
    except FieldError as error:
        notes.append(f"bytes as stored are not known: quantisation {error}")
        return None
    notes.extend(base.assumptions)
    given = base.component_bytes(size)
    by_component: dict[str, int] = {name: given.get(name, 0) for name in COMPONENTS}
    s = base.sizes
    return StoredBytes(
        model.quantised.name,
        dtype,
        by_component,
        s.weights,
        s.scales,
        s.zero_points,
        s.indices,
        s.codebooks,
        base.kept * size,
        adapters_bytes,
    )


def largest_leaf(arch: Architecture) -> int:
    """Parameters of the largest leaf module [elements]."""
    return max(
        [
            amount
            for _, modules in arch.all_groups()
            for module in modules
            for amount in _leaves(module).values()
        ],
        default=0,
    )


def _leaves(module: Module) -> dict[str, int]:
    """Elements by leaf module: a linear layer's weight and bias belong together, and so do experts
    kept in one tensor each for up and down.
    """
    leaves: dict[str, int] = {}
    for row in module.parameter_rows:
        leaf = row.name.rpartition(".")[0]
        leaves[leaf] = leaves.get(leaf, 0) + math.prod(row.shape)
    return leaves
