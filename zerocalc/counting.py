"""Parameter counts of a model, by component, from the one list of tensors."""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.modules.base import Component, Module
from zerocalc.modules.layers import Architecture, architecture
from zerocalc.spec.base import FieldError
from zerocalc.spec.model import Model
from zerocalc.spec.recipe import DTYPE_BYTES, FloatDtype

COMPONENTS: tuple[Component, ...] = ("embedding", "head", "attention", "mlp", "experts", "norms", "other")


STORED_DTYPE: FloatDtype = "bf16"
"""In which checkpoints are kept unless their config says so."""


@record
class StoredBytes:
    """Bytes of a checkpoint's tensors by ``format`` (a quantisation's, or a dtype): by component, and by what they are for.

    ``not_quantised`` are of the tensors kept in ``dtype``; ``codebooks`` also shapes and other figures of a tensor.
    """

    format: str
    dtype: str
    components: dict[Component, int]
    weights: int
    scales: int
    zero_points: int
    indices: int
    codebooks: int
    not_quantised: int


@record
class Counts:
    """Parameters [elements]: ``active`` is what one token passes through, ``largest_leaf`` the largest tensor's module.

    ``stored_bytes`` is what the tensors take as a checkpoint keeps them, scales included; ``None`` where that is not known.
    """

    schema_version: int
    total: int
    trainable: int
    active: int
    components: dict[Component, int]
    largest_leaf: int
    largest_block: int
    stored_bytes: int | None
    stored: StoredBytes | None
    notes: tuple[str, ...]


def count_parameters(model: Model) -> Counts:
    """Count a model tensor by tensor. Raises `ValueError` for a bare number of parameters, which has no tensors."""
    arch = architecture(model)
    if arch is None:
        raise ValueError("a bare number of parameters has no tensors to count: give an architecture")
    components = dict.fromkeys(COMPONENTS, 0)
    active = leaf = 0
    for count, modules in ((1, arch.before), *arch.groups, (1, arch.after)):
        for module in modules:
            components[module.component] += module.parameter_elements * count
            active += module.active_elements * count
            leaf = max(leaf, *_leaves(module).values(), 0)
    total = arch.parameters
    blocks = [amount for _, amount in arch.group_elements]
    notes = list(model.assumed)
    kept = _stored(model, arch, components, notes)
    size = sum(kept.components.values()) if kept else None
    return Counts(1, total, model.trainable or total, active, components, leaf, max(blocks, default=0), size, kept, tuple(notes))


def _stored(model: Model, arch: Architecture, components: dict[Component, int], notes: list[str]) -> StoredBytes | None:
    """The model as a checkpoint keeps it; what is not known, or taken on trust, becomes a note."""
    if model.dtype is None:
        what = "stored" if model.quantised is None else "what is not quantised stored"
        notes.append(f"{what} in {STORED_DTYPE}, {DTYPE_BYTES[STORED_DTYPE]} bytes a parameter")
    dtype = model.dtype or STORED_DTYPE
    size = DTYPE_BYTES[dtype]
    if model.quantised is None:
        sizes = {component: count * size for component, count in components.items()}
        return StoredBytes(dtype, dtype, sizes, 0, 0, 0, 0, 0, sum(sizes.values()))
    from zerocalc.modules.stored import stored  # most models are not quantised

    try:
        base = stored(model, arch)
    except FieldError as error:
        notes.append(f"bytes as stored are not known: quantisation {error}")
        return None
    notes.extend(base.assumptions)
    given = base.component_bytes(size)
    by_component = {component: given.get(component, 0) for component in components}
    s = base.sizes
    return StoredBytes(
        model.quantised.name, dtype, by_component, s.weights, s.scales, s.zero_points, s.indices, s.codebooks, base.kept * size
    )  # fmt: skip


def _leaves(module: Module) -> dict[str, int]:
    """Elements by leaf module: a linear layer's weight and bias belong together, and so do experts kept in one tensor each for up and down."""
    leaves: dict[str, int] = {}
    for parameter in module.parameters:
        leaf = parameter.name.rpartition(".")[0]
        leaves[leaf] = leaves.get(leaf, 0) + parameter.elements
    return leaves
