"""The values of a ``quantization_config``, checked one by one, and its lists of modules
followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zerocalc.huggingface.family_file import Places
from zerocalc.huggingface.module_names import WITHIN, Names, NamesError
from zerocalc.quantities import shown

_MOST_LISTED = 6


class QuantisationError(ValueError):
    """A quantised checkpoint whose bytes are not known: ``key`` is the one to blame, the message
    one line.
    """

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class Table:
    """One table; ``notes`` is what was taken on trust. ``places`` and ``wide`` as for
    `quantised.read`.
    """

    def __init__(self, table: Mapping[str, Any], places: Places | None, wide: bool) -> None:
        self.table, self.places, self.wide = table, places, wide
        self.notes: list[str] = []
        self.names_modules = False
        """Whether a list names more than the head, so that it can be followed in a plain decoder
        only: what other modules are called is not known.
        """

    def among(self, key: str, default: Any, *allowed: Any) -> Any:
        """A value that must be one of a few."""
        value = self.table.get(key)
        if value is None:
            return default
        if isinstance(value, (dict, list)) or not any(
            type(value) is type(one) and value == one for one in allowed
        ):
            raise QuantisationError(
                f"{spelled(value)} is not counted yet; "
                f"{', '.join(spelled(one) for one in allowed)} {_are(allowed)}",
                key,
            )
        return value

    def flag(self, key: str) -> bool:
        """True or false, false where it is not given."""
        value = self.table.get(key)
        if value is not None and not isinstance(value, bool):
            raise QuantisationError(f"{spelled(value)} is not true or false", key)
        return bool(value)

    def group(self, key: str, default: int) -> int:
        """A group's size; 0 for a whole row, which configs spell -1."""
        value = self.table.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not (value == -1 or 1 <= value <= 10**6)
        ):
            raise QuantisationError(f"{spelled(value)} is not a group's size", key)
        return max(value, 0)

    def names(self, key: str) -> list[str] | None:
        """A list of modules' names; ``None`` where there is none."""
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            raise QuantisationError("is not a list of names", key)
        return value

    def kept(
        self,
        base: Mapping[str, Any],
        key: str,
        *,
        head: bool = True,
        marked: bool = False,
        names: list[str] | None = None,
    ) -> dict[str, Any]:
        """What stays as it was: by the format itself, and by the names under ``key``; with ``head``
        the output head whatever the names are.
        """
        found = self.names(key) if names is None else names
        kept = dict(base["kept"])
        if found is None:
            return kept
        chosen = self.list_of(found, key, marked)
        outside = chosen.outside("head")
        if not head:
            kept["head"] = outside
        for name, layers in self.followed(chosen, key).items():
            kept[name] = kept.get(name) is True or layers
        if unmet := chosen.unmet():
            self.notes.append(
                f"quantization_config.{key} names no known linear layer: {listed(unmet)}"
            )
        return kept

    def list_of(self, names: Iterable[str], key: str, marked: bool = False) -> Names:
        """The names, read."""
        names = list(names)
        self.names_modules |= any("head" not in name for name in names)
        try:
            return Names(names, marked=marked)
        except NamesError as error:
            raise QuantisationError(str(error), key) from None

    @staticmethod
    def _layers(chosen: Names, name: str, count: int, key: str) -> set[int]:
        try:
            return chosen.layers(name, count)
        except NamesError as error:
            raise QuantisationError(str(error), key) from None

    def followed(self, chosen: Names, key: str, *, others: bool = False) -> dict[str, Any]:
        """The linear layers that a list means (or all ``others``): true for all of a decoder's
        layers, or how many of each group.
        """
        if self.places is None:
            if chosen.in_layers or chosen.numbered or others:
                raise QuantisationError(
                    "names single layers of a model whose layers are in several places", key
                )
            return {name: True for name in WITHIN if self._layers(chosen, name, 1, key)}
        count = 1 + max((i for group in self.places for i in group), default=0)
        out: dict[str, Any] = {}
        for name in WITHIN:
            layers = self._layers(chosen, name, count, key)
            layers = set(range(count)) - layers if others else layers
            if len(layers) == count:
                out[name] = True
            elif layers:
                out[name] = tuple(sum(i in layers for i in group) for group in self.places)
        return out


def listed(names: list[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(map(shown, names[:_MOST_LISTED])) + more


def _are(allowed: tuple[Any, ...]) -> str:
    return "is" if len(allowed) == 1 else "are"


def spelled(value: object) -> str:
    """A value as an error quotes it; tables and lists are only named."""
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    return "none" if value is None else shown(value)
