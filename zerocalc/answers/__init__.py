"""What is derived from estimates: plans, suggestions, notes, assumptions, explanations and
timelines.
"""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.answers import document as document
    from zerocalc.answers import explain as explain
    from zerocalc.answers import offloading as offloading
    from zerocalc.answers import other_tools as other_tools
    from zerocalc.answers import pipeline_stages as pipeline_stages
    from zerocalc.answers import planner as planner
    from zerocalc.answers import suggestions as suggestions
    from zerocalc.answers import timeline as timeline
else:
    __getattr__ = submodules(__name__)
