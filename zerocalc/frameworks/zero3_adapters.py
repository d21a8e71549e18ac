"""Modules with adapters, as PEFT calls them: which are frozen, and which have a turn in backward at
all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zerocalc.frameworks.zero3_prefetch import Node
from zerocalc.model.adapters import Adapted, Adapters
from zerocalc.model.architecture import Architecture

AROUND = 3
"""Modules around the model's body: the one with the head, PEFT's LoraModel and its PeftModel."""
READ_INPUT = frozenset({"q", "k", "v", "qkv", "q_down", "kv_down", "gate", "up"})
"""Layers that are given what their module is given; the others what some of these have made."""
Parts = tuple[Adapted, ...]


def parts_of(adapters: Adapters, arch: Architecture) -> list[Parts] | None:
    """The adapted layers before the layers, in a layer of each group, and after them; ``None``
    where they are no linear layers by themselves.
    """
    plain = all(layer.copies == 1 and len(layer.tensors) == 1 for _, layer in adapters.layers)
    before, *_, after = parts = [part for _, part in adapters.parts]
    routed = any(module.experts > 1 for _, modules in arch.groups for module in modules)
    return parts if plain and not before and not (arch.tied and after) and not routed else None


def with_adapter(base: Node, names: Sequence[str], part: Parts) -> Node:
    """A frozen module, called by the one that adds its adapter, before a dropout and the adapter's
    two matrices.
    """
    base = base._replace(frozen=True)
    for layer in part:
        if layer.tensors[0] in names:
            return Node((), (base, Node(), *[Node((math.prod(shape),)) for shape in layer.shapes]))
    return base


def up_to_first_gradient(names: Sequence[str], node: Node) -> tuple[Node, bool]:
    """A module whose input has no gradient, with the turns that it has in backward, and whether
    what leaves it has a gradient.

    ``names``: of the layers that it calls.
    """
    if not node.calls:
        return node._replace(silent=True), False
    if len(names) == 1:
        return _adapter_alone(node), True
    calls: list[Node] = []
    started = False
    for name, call in zip(names, node.calls, strict=True):
        if started and name not in READ_INPUT:
            calls.append(call)
        else:
            calls.append(_adapter_alone(call) if call.calls else call._replace(silent=True))
            started = started or bool(call.calls)
    return node._replace(calls=tuple(calls), silent=not started), started


def _adapter_alone(node: Node) -> Node:
    base, dropout, *matrices = node.calls
    return node._replace(
        calls=(base._replace(silent=True), dropout._replace(silent=True), *matrices)
    )
