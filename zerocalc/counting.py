"""Parameter counts of a model, by component, from the one list of tensors."""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.modules.base import Component, Module
from zerocalc.modules.layers import architecture
from zerocalc.spec.model import Model

COMPONENTS: tuple[Component, ...] = ("embedding", "head", "attention", "mlp", "experts", "norms", "other")


@record
class Counts:
    """Parameters [elements]: ``active`` is what one token passes through, ``largest_leaf`` the largest tensor's module."""

    schema_version: int
    total: int
    trainable: int
    active: int
    components: dict[Component, int]
    largest_leaf: int
    largest_block: int
    notes: tuple[str, ...]


def count_parameters(model: Model) -> Counts:
    """Count a model tensor by tensor. Raises `ValueError` for a bare number of parameters, which has no tensors."""
    arch = architecture(model)
    if arch is None:
        raise ValueError("a bare number of parameters has no tensors to count: give an architecture")
    components = dict.fromkeys(COMPONENTS, 0)

    def add(modules: tuple[Module, ...], times: int) -> None:
        for module in modules:
            components[module.component] += module.parameter_elements * times

    add(arch.before, 1)
    add(arch.layer, arch.layers)
    add(arch.after, 1)
    modules = (*arch.before, *arch.layer, *arch.after)
    leaf = max(parameter.elements for module in modules for parameter in module.parameters)
    total = arch.parameters
    return Counts(1, total, model.trainable or total, total, components, leaf, arch.layer_elements, model.assumed)
