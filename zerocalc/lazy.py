"""Packages whose modules are imported at their first use, so that a command loads what it needs.

``from zerocalc import answers`` at the top of a file, and ``answers.offloading.would_fit(job)``
where it is wanted: that line imports ``zerocalc.answers.offloading``, unless something has before.
A package that is used like this names those modules for the type checker, and gets its
``__getattr__`` (PEP 562) here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package that imports its modules when they are asked for."""

    def attribute(name: str) -> ModuleType:
        wanted = f"{package}.{name}"
        try:
            return import_module(wanted)
        except ModuleNotFoundError as error:
            if error.name != wanted:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return attribute
