"""Parameter counts of a model that may be a name or a file."""

from __future__ import annotations

import os

from zerocalc import huggingface
from zerocalc.counts import Counts
from zerocalc.model import counting
from zerocalc.spec.model import Model


def count_parameters(model: Model | str | os.PathLike[str]) -> Counts:
    """Count a model tensor by tensor; a text is the name of a preset or the path of a TOML file or
    a ``config.json``.

    Raises `ValueError` for a bare number of parameters, which has no tensors, and for a name that
    is none.
    """
    if isinstance(model, (str, os.PathLike)):
        model = huggingface.config.load_model(model)
    return counting.count_parameters(model)
