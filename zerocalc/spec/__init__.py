"""What the user describes: validated once, here, and frozen.

Annotations stand here without ``from __future__ import annotations``: pydantic would compile each
of them from its text at every start.
"""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.spec import base as base
    from zerocalc.spec import cluster as cluster
    from zerocalc.spec import experts as experts
    from zerocalc.spec import framework as framework
    from zerocalc.spec import lora as lora
    from zerocalc.spec import model as model
    from zerocalc.spec import offload as offload
    from zerocalc.spec import pipelines as pipelines
    from zerocalc.spec import quantisation as quantisation
    from zerocalc.spec import recipe as recipe
    from zerocalc.spec import stack as stack
else:
    __getattr__ = submodules(__name__)
