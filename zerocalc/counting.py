"""Parameter counts of a model, by component, from the one list of tensors."""

from __future__ import annotations

import os

from zerocalc.ledger import record
from zerocalc.modules.base import Component, Module
from zerocalc.modules.layers import architecture
from zerocalc.spec.model import Model

COMPONENTS: tuple[Component, ...] = ("embedding", "head", "attention", "mlp", "experts", "norms", "other")


@record
class Counts:
    """Parameters [elements]: ``active`` is what one token passes through, ``largest_leaf`` the largest tensor's module.

    ``total`` is the base and its ``adapters``, which are all that LoRA trains.
    """

    schema_version: int
    total: int
    trainable: int
    active: int
    components: dict[Component, int]
    largest_leaf: int
    largest_block: int
    notes: tuple[str, ...]
    adapters: int = 0


def count_parameters(model: Model | str | os.PathLike[str]) -> Counts:
    """Count a model tensor by tensor; a text is the name of a preset or the path of a TOML file or a ``config.json``.

    Raises `ValueError` for a bare number of parameters, which has no tensors, and for a name that is none.
    """
    if isinstance(model, (str, os.PathLike)):
        from zerocalc.interop.huggingface import load_model

        model = load_model(model)
    if not isinstance(model, Model):
        hint = "; its model is job.model" if hasattr(model, "model") else ""
        raise TypeError(f"count_parameters takes a Model, a preset's name or a path, not {type(model).__name__}{hint}")
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
    blocks = [amount for _, amount in arch.group_elements]
    largest = max(blocks, default=0)
    if model.lora is not None:
        from zerocalc.modules.lora import adapters

        added = adapters(model, arch)
        if added is not None:
            largest = max([amount + extra for amount, extra in zip(blocks, added.groups, strict=True)], default=0)
            notes = (*model.assumed, *model.lora.assumed, *added.notes)
            return Counts(1, arch.parameters + added.total, added.total, active + added.active, components, leaf, largest, notes, added.total)
    return Counts(1, arch.parameters, model.trainable or arch.parameters, active, components, leaf, largest, model.assumed)


def _leaves(module: Module) -> dict[str, int]:
    """Elements by leaf module: a linear layer's weight and bias belong together, and so do experts kept in one tensor each for up and down."""
    leaves: dict[str, int] = {}
    for parameter in module.parameters:
        leaf = parameter.name.rpartition(".")[0]
        leaves[leaf] = leaves.get(leaf, 0) + parameter.elements
    return leaves
