"""YAML, of which a configuration may hold plain values only."""

from __future__ import annotations

from typing import Any

import yaml

from zerocalc import presets
from zerocalc.presets import PresetError


class _Loader(yaml.SafeLoader):
    """Safe values, and nothing that grows while it is read."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if not all(isinstance(key, str) for key in keys):
            raise yaml.YAMLError("a key is no text")
        if len(set(keys)) < len(keys):
            raise yaml.YAMLError("a key stands twice")
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML text, of plain values only, with no key twice and no aliases; ``name``
    is what errors call it.
    """
    try:
        value = presets.visible(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise PresetError(
            f"{name} is not valid YAML: {error.problem or error.context}{place}"
        ) from None
    except yaml.YAMLError as error:
        raise PresetError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a value that is none"
        raise PresetError(f"{name} is not valid YAML: {why}") from None
    if not isinstance(value, dict):
        raise PresetError(f"{name} holds no table of settings")
    return value
