"""zerocalc: what training a large model under ZeRO or FSDP costs, before a GPU is rented.

>>> import zerocalc as zc
>>> answer = zc.plan(zc.Job(model=zc.Model(params="7.5B"), cluster=zc.Cluster(gpus=64)))
>>> [candidate.memory.gpu.states_bytes / 1e9 for candidate in answer.candidates]
[120.0, 31.40625, 16.640625, 1.875]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from zerocalc.answers.document import to_json as to_json
    from zerocalc.answers.planner import plan as plan
    from zerocalc.counts import Counts as Counts
    from zerocalc.estimator import estimate as estimate
    from zerocalc.huggingface.config import load_model as load_model
    from zerocalc.huggingface.counting import count_parameters as count_parameters
    from zerocalc.results import Estimate as Estimate
    from zerocalc.results import Plan as Plan
    from zerocalc.spec.cluster import Cluster as Cluster
    from zerocalc.spec.cluster import Gpu as Gpu
    from zerocalc.spec.framework import Framework as Framework
    from zerocalc.spec.job import Job as Job
    from zerocalc.spec.model import Model as Model
    from zerocalc.spec.parallel import Parallel as Parallel
    from zerocalc.spec.recipe import Recipe as Recipe
    from zerocalc.spec.training import Training as Training
    from zerocalc.spec.zero import Zero as Zero

_HOMES = {
    "Cluster": "spec.cluster",
    "Counts": "counts",
    "Estimate": "results",
    "Framework": "spec.framework",
    "Gpu": "spec.cluster",
    "Job": "spec.job",
    "Model": "spec.model",
    "Parallel": "spec.parallel",
    "Plan": "results",
    "Recipe": "spec.recipe",
    "Training": "spec.training",
    "Zero": "spec.zero",
    "count_parameters": "huggingface.counting",
    "estimate": "estimator",
    "load_model": "huggingface.config",
    "plan": "answers.planner",
    "to_json": "answers.document",
}
"""Where each public name lives; imported when first asked for, so that a command loads only what it
uses.
"""

__all__ = [  # noqa: PLE0604 - names, spelled once
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zerocalc' has no attribute {name!r}")
    value = getattr(import_module(f"zerocalc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
