"""The physics: pure functions of plain numbers (elements, bytes, ranks), each with its text and
source.

Sources: [ZeRO] arXiv 1910.02054 · [Inf] 2104.07857 · [Off] 2101.06840 · [FSDP] 2304.11277 · [SP]
2205.05198 · [Meg] 2104.04473.
"""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.formulas import quantisation as quantisation
else:
    __getattr__ = submodules(__name__)
