"""What one rank holds of a model, and in which units, tensors and order frameworks handle it."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.sharding import experts as experts
    from zerocalc.sharding import rank as rank
    from zerocalc.sharding import work as work
else:
    __getattr__ = submodules(__name__)
