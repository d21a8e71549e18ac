"""The kinds of modules, a file for each or for a few that are akin: its tensors and its forward
pass, and the `Kind` that names them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerocalc.model.kind import Kind

FILES = {
    "embedding": "embedding_head",
    "head": "embedding_head",
    "norm": "norm",
    "attention": "attention",
    "mla": "latent",
    "delta": "delta",
    "channel_delta": "delta",
    "mamba": "mamba",
    "mamba2": "mamba",
    "convolution": "convolution",
    "recurrent": "lru",
    "linear_attention": "linear_attention",
    "layer_inputs": "layer_inputs",
    "layer_input": "layer_inputs",
    "altup": "altup",
    "laurel": "altup",
    "mlp": "mlp",
    "router": "moe",
    "moe": "moe",
    "tensors": "tensors",
}
"""Every kind, and the file of this folder that holds its record, which is called like the kind in
capitals.
"""


@cache
def kind_of(name: str) -> Kind:
    """The kind of that name, whose file is imported when it is first asked for. Raises `KeyError`
    where there is none.
    """
    file = import_module(f"zerocalc.model.kinds.{FILES[name]}")
    found: Kind = getattr(file, name.upper())
    return found
