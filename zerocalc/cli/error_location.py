"""Maps an error to the flag, file or job-file field that caused it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerocalc.cli.flags import FLAG_OF_PATH, NAMED
from zerocalc.presets import label

BROUGHT_BY = {
    "cluster.gpu": ("cluster.node", "gpu"),
    "cluster.gpus_per_node": ("cluster.node", "gpus"),
    "recipe": ("framework", "recipe"),
    "implementation": ("framework", "implementation"),
    "loss": ("implementation", "loss"),
}
"""Fields that another one sets where they are not given: that one, and its field that does."""

FOLLOWS_FROM = {
    "model.ffn": "model.hidden",
    "model.head_dim": "model.hidden",
    "model.kv_heads": "model.heads",
    "model.positions": "training.seq",
}
"""Fields that are filled in from others."""


@dataclass(slots=True)
class Written:
    """What was written: flags by the field they set, a job file, the presets' names in it, and all
    that came of it.

    ``keys``: the keys of a tool's configuration, ``config_file``, by the field they set; ``notes``:
    what is to be said of fields that nobody wrote.
    """

    given: Mapping[str, Any]
    job_file: str | None = None
    config_file: str | None = None
    keys: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def line(self, path: str, text: str) -> str:
        """An error about a field as one line: first what the user wrote, last the file that it
        stands in.
        """
        for target, (source, key) in BROUGHT_BY.items():
            brings = self._value(source)
            if _within(path, target) and self._value(target) is None and isinstance(brings, dict):
                rest = path[len(target) + 1 :]
                where, file = self._place(f"{source}.{key}")
                return (
                    f"{where}{f' {label(str(brings[key]))}: {rest}' if rest else ''}: {text}{file}"
                )
        source = FOLLOWS_FROM.get(path, "")
        if source and self._value(path) is None and self._value(source) is not None:
            where, file = self._place(source)
            return f"{where}: the {path.rpartition('.')[2]} that follows from it: {text}{file}"
        where, file = self._place(path)
        return f"{where}: {in_flags(text) if where in FLAG_NAMES else text}{file}"

    def _place(self, path: str) -> tuple[str, str]:
        """What the user wrote, a flag where one was given (or nothing else could have been), else a
        field; and a clause on its file.
        """
        item = path.rpartition(".")
        if item[2].isdecimal() and item[0] in FLAG_OF_PATH:
            path = item[0]  # an item of a list that is one flag
        if path in self.given:
            return FLAG_OF_PATH[path], ""
        for target, key in self.keys.items():
            if _within(path, target) and target not in self.given:
                return key, f" (in {self.config_file})"
        for named in NAMED:
            if _within(path, named) and path != named:
                if named in self.given:
                    return (
                        f"{FLAG_OF_PATH[named]} {label(self.given[named])}: "
                        f"{path[len(named) + 1 :]}",
                        "",
                    )
                if named in self.names:
                    return path, f" (in {label(self.names[named])}, which {self.job_file} names)"
        if self.job_file is not None:
            return path or "job", f" (in {self.job_file})"
        return FLAG_OF_PATH.get(path, path or "job"), ""

    def _value(self, path: str) -> Any:
        """What stands in a field after flags were put over the file."""
        found: Any = self.data
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found


FLAG_NAMES = frozenset(FLAG_OF_PATH.values())
FIELDS = {path.rpartition(".")[2]: flag for path, flag in FLAG_OF_PATH.items()}
UNMISTAKABLE = "|".join(field for field in FIELDS if "_" in field)
"""Names of fields that are no words of a sentence."""
PHRASES = (
    (
        r"\bsay what is trained\b.*",
        "say what is trained: --params 7B, or --model llama-3-8b, or --layers, --hidden "
        "and --heads",
    ),
    (
        r"\b(?:model|cluster|parallel|training|zero)(?:\.\w+)+",
        lambda found: FLAG_OF_PATH.get(found[0], found[0]),
    ),
    (
        r"\(supported: ([a-z_, ]+)\)$",
        lambda found: (
            f"(supported: {', '.join(FIELDS.get(name, name) for name in found[1].split(', '))})"
        ),
    ),
    (rf"(?<![\w.'-])(?:{UNMISTAKABLE})(?![\w'])", lambda found: FIELDS[found[0]]),
    (r"\brecompute (?=full|selective|operators|none)", "--recompute "),
    (r"\b(tp|pp|cp) (?=above )", r"--\1 "),
)
"""How errors speak of fields, and what flags are to be named in their place."""


def in_flags(text: str) -> str:
    """An error about what was written as a flag, with the flags for the fields that it names.

    >>> in_flags("needs partition_activations: it moves partitioned activations to the CPU")
    'needs --partition-activations: it moves partitioned activations to the CPU'
    """
    for pattern, flags in PHRASES:
        text = re.sub(pattern, flags, text)
    return text


def about(path: str, text: str) -> str:
    """An error about a field of a job that only flags describe."""
    return f"{FLAG_OF_PATH[path]}: {in_flags(text)}" if path in FLAG_OF_PATH else f"{path}: {text}"


def _within(path: str, target: str) -> bool:
    return path == target or path.startswith(f"{target}.")
