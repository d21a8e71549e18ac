"""Other people's files, one module a tool: read into what a Job is made of, or refused by name."""

from typing import TYPE_CHECKING

from zerocalc.lazy import submodules

if TYPE_CHECKING:
    from zerocalc.configs import config_file as config_file
    from zerocalc.configs import export as export
    from zerocalc.configs import reader as reader
    from zerocalc.configs import yaml_text as yaml_text
else:
    __getattr__ = submodules(__name__)
