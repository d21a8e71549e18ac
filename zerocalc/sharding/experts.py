"""Routed experts on ranks of their own: what one of those ranks holds of them, and what is left of
the layers without them.
"""

from __future__ import annotations

from zerocalc.ledger import replaced
from zerocalc.model.architecture import Architecture, Modules
from zerocalc.model.module import Module, ParameterRow


def without_experts(arch: Architecture) -> Architecture:
    """An architecture less its routed experts; routers and shared experts stay."""
    groups = tuple(
        [(count, tuple([m for m in modules if m.experts == 1])) for count, modules in arch.groups]
    )
    return arch.cut(arch.before, groups, arch.after)


def experts_only(arch: Architecture, expert_parallel: int) -> Architecture:
    """One rank's experts of every layer that has some: one in ``expert_parallel`` of them."""
    groups = tuple(
        [
            (count, mine)
            for count, modules in arch.groups
            if (mine := _mine(modules, expert_parallel))
        ]
    )
    return arch.cut((), groups, ())


def _mine(modules: Modules, expert_parallel: int) -> Modules:
    return tuple(
        [replaced(m, parameter_rows=_dealt(m, expert_parallel)) for m in modules if m.experts > 1]
    )


def _dealt(module: Module, expert_parallel: int) -> tuple[ParameterRow, ...]:
    """The tensors of a rank's experts: fewer of them where each expert has its own, else their
    first size divided.
    """
    rows = module.parameter_rows
    if rows[0][1][0] != module.experts or len(rows) >= module.experts:
        return rows[: len(rows) // expert_parallel]
    return tuple(
        [row._replace(shape=(row.shape[0] // expert_parallel, *row.shape[1:])) for row in rows]
    )


def moe_layers(arch: Architecture) -> list[tuple[int, int]]:
    """(layers, experts that a token passes through) of each group of layers that has routed
    experts.
    """
    return [(count, m.used) for count, modules in arch.groups for m in modules if m.experts > 1]
