"""Job to ledger, a file a block."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.memory import activations as activations
else:
    __getattr__ = submodules(__name__)
