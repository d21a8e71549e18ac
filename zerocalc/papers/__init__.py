"""Published tables, computed again cell by cell."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.papers import comparison as comparison
    from zerocalc.papers import tables as tables
else:
    __getattr__ = submodules(__name__)
