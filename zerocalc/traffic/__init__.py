"""Job to schedule, a file a group of ranks."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.traffic import context as context
    from zerocalc.traffic import experts as experts
    from zerocalc.traffic import placement as placement
    from zerocalc.traffic import vocab_parallel as vocab_parallel
else:
    __getattr__ = submodules(__name__)
