"""The one list of tensors: each module stands in one file and yields its parameters and what it
saves for backward.
"""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.model import adapters as adapters
    from zerocalc.model import build as build
    from zerocalc.model import checkpoint_bytes as checkpoint_bytes
    from zerocalc.model import counting as counting
else:
    __getattr__ = submodules(__name__)
