"""Hugging Face models: a config.json, read by its family, as a model whose parameters are counted
exactly.
"""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.huggingface import built_with_transformers as built_with_transformers
    from zerocalc.huggingface import config as config
else:
    __getattr__ = submodules(__name__)
