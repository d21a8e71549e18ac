"""Results to text: the only rooms that know rich."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.render import comparisons as comparisons
    from zerocalc.render import counts as counts
    from zerocalc.render import explanations as explanations
    from zerocalc.render import flat as flat
    from zerocalc.render import papers as papers
    from zerocalc.render import pipelines as pipelines
    from zerocalc.render import plain as plain
    from zerocalc.render import plans as plans
    from zerocalc.render import presets as presets
    from zerocalc.render import steps as steps
else:
    __getattr__ = submodules(__name__)
