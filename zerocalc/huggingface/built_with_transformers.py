"""A config counted by transformers itself: its class built on torch's meta device, every parameter
listed with its name and shape.

Nothing is downloaded and no code of the config's own is run. torch and transformers are an optional
extra, imported only when asked for.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerocalc.huggingface.config import read_config
from zerocalc.huggingface.family_file import MOST_LAYERS
from zerocalc.huggingface.reader import NO_MODEL_TYPE, given_title
from zerocalc.presets import PresetError, label
from zerocalc.spec.base import explain
from zerocalc.spec.model import Model
from zerocalc.spec.stack import MOST_EXPERTS, ComponentName, Group, ModuleSpec, Stack

EXTRA = "pip install '.[transformers]' in zerocalc's checkout"
OWN_CODE = ("auto_map", "quantization_config", "_name_or_path", "transformers_version")
"""Keys that a class is built without: code of the config's own, and what says nothing of the
class's tensors.
"""
_LONGEST_CAUSE = 200

USED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
)
"""Spellings of how many experts a token passes through."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Spellings of how many experts a layer has."""

_LAYER = re.compile(r"^(?P<list>(?:[^.\d][^.]*\.)+)(?P<index>\d+)\.(?P<rest>.+\..+)$")
"""A parameter inside a layer: the first list of modules in its path, the layer's number, and where
in the layer it is.
"""
_COUNT_OF_LAYERS = re.compile(r"^(num|n|encoder|decoder).*layers?$|depth$")
_MLP = re.compile(
    r"mlp|feed_forward|ffn|^ff$|^fc\d$|^intermediate$|^output$|dense_(h_to_4h|4h_to_h)|densereludense"
)
_NORM = re.compile(r"norm|^ln_|^ln\d|_ln$")


def load_built(path: str) -> Model:
    """As `build`, from the file at ``path``."""
    return build(read_config(path), label(path), source=Path(path).name)


def build(config: Mapping[str, Any], name: str, source: str) -> Model:
    """The model that transformers makes of a config: shared tensors once, what it saves for
    backward unknown.

    ``name`` is what errors call the config. The class is the first of ``architectures``, else the
    causal language model of ``model_type``. Raises `PresetError`, one line, where transformers is
    not installed or does not build the class.
    """
    _check_sizes(config, name)
    with _offline():
        try:
            transformers, torch = import_module("transformers"), import_module("torch")
        except ImportError as error:
            raise PresetError(
                f"needs transformers and torch ({error.name or error} is not there): {EXTRA}"
            ) from None
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise PresetError(f"{name}: {NO_MODEL_TYPE}")
    try:
        with _silent(), torch.device("meta"):
            built = _instance(
                transformers,
                {key: value for key, value in config.items() if key not in OWN_CODE},
                model_type,
            )
            stack = _stack(built, torch)
    except PresetError as error:
        raise PresetError(f"{name}: {error}") from None
    except (
        Exception
    ) as error:  # whatever somebody else's constructor says of a config that it cannot build
        raise PresetError(
            f"{name}: transformers {transformers.__version__} does not build it: {_cause(error)}"
        ) from None
    notes = [
        f"every tensor of {type(built).__name__} as transformers "
        f"{transformers.__version__} builds it; what its layers save is not known"
    ]
    if _routed(built.config.get_text_config()) and not any(
        spec.values.get("experts") for group in stack.groups for spec in group.modules
    ):
        notes.append("its experts are not told apart: active parameters are taken as all")
    try:
        return Model.model_validate(
            {
                "stack": stack,
                "family": model_type[:100],
                "source": source,
                "title": given_title(config) or model_type,
                "assumed": tuple(notes),
            }
        )
    except ValidationError as error:
        raise PresetError(f"{name}: {' '.join(explain(error))}") from None


def _check_sizes(table: Mapping[str, Any], name: str) -> None:
    """No config of millions of layers: they would be built one by one."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            _check_sizes(value, name)
        elif isinstance(value, int) and not isinstance(value, bool):
            most = (
                MOST_LAYERS
                if _COUNT_OF_LAYERS.search(key)
                else MOST_EXPERTS
                if "expert" in key
                else None
            )
            if most is not None and value > most:
                raise PresetError(f"{name}: {key}: more than {most:,}")


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Hugging Face's libraries read when imported whether they may use the network."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Advice to those who train is no part of a count."""
    logging = import_module("transformers.utils.logging")
    before = logging.get_verbosity()
    logging.set_verbosity(50)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _instance(transformers: Any, table: dict[str, Any], model_type: str) -> Any:
    """The class's instance, without memory of its own."""
    classes = table.get("architectures")
    config = transformers.AutoConfig.for_model(**{**table, "model_type": model_type})
    if not classes:
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    wanted = classes[0] if isinstance(classes, list) else None
    found: Any = (
        getattr(transformers, wanted, None)
        if isinstance(wanted, str) and wanted.isidentifier()
        else None
    )
    usable = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if not usable:
        raise PresetError(
            "architectures names no class of transformers; leave it out for the causal "
            "language model"
        )
    return found._from_config(config, attn_implementation="eager")


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"


def _stack(built: Any, torch: Any) -> Stack:
    """All parameters as modules: before, in and after the layers, in the class's order."""
    text = built.config.get_text_config()
    head = built.get_output_embeddings()
    routed = _routed(text)
    words = getattr(built.get_input_embeddings(), "weight", None)
    mixtures = tuple(
        path.removesuffix("experts")
        for path, _ in built.named_modules()
        if path.endswith(".experts")
    )
    seen: set[int] = set()
    outside: list[tuple[bool, ComponentName, str, tuple[int, ...]]] = []
    layers: dict[str, list[tuple[ComponentName, str, tuple[int, ...]]]] = {}
    for path, module in built.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            where, shape = f"{path}.{key}" if path else key, tuple(parameter.shape)
            component = (
                "embedding"
                if parameter is words
                else "head"
                if module is head
                else _component(where, module, mixtures, torch)
            )
            inside = _LAYER.match(where)
            if inside:
                layers.setdefault(f"{inside['list']}{inside['index']}", []).append(
                    (component, inside["rest"], shape)
                )
            else:
                outside.append((bool(layers), component, where, shape))
    alike: dict[str, tuple[int, tuple[ModuleSpec, ...]]] = {}
    for rows in layers.values():
        modules = tuple(_modules(rows, routed))
        key = repr(modules)
        alike[key] = (alike[key][0] + 1 if key in alike else 1, modules)
    before = _modules([row[1:] for row in outside if not row[0]], routed)
    after = [*_modules([row[1:] for row in outside if row[0]], routed)]
    if (
        head is not None
        and not any(row[1] == "head" for row in outside)
        and getattr(head, "weight", None) is not None
    ):
        vocab, dim = (
            head.weight.shape
        )  # tied: the product with the embedding is computed like any other
        after.append(
            ModuleSpec(type="head", name="head", values={"vocab": vocab, "dim": dim, "tied": True})
        )
    return Stack(
        before=tuple(before),
        groups=tuple(Group(count=count, modules=modules) for count, modules in alike.values()),
        after=tuple(after),
    )


def _whole(text: Any, *keys: str) -> int | None:
    """The first of some attributes that is a number; none where layers differ in it, which
    transformers refuses to say in one number.
    """
    for key in keys:
        with contextlib.suppress(Exception):
            value = getattr(text, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _routed(text: Any) -> tuple[int, int] | None:
    """How many experts a token passes through, and of how many; ``None`` where the config says no
    such thing.
    """
    used, experts = _whole(text, *USED), _whole(text, *EXPERTS)
    return (used, experts) if used and experts and used <= experts else None


def _component(where: str, module: Any, mixtures: tuple[str, ...], torch: Any) -> ComponentName:
    """Where a parameter is counted, by the names on its path and the kind of its module;
    ``mixtures`` are the paths of layers of experts.
    """
    path = where.lower()
    parts, kind = path.split("."), type(module).__name__.lower()
    attention = [part for part in parts if "attn" in part or "attention" in part]
    is_norm = "norm" in kind or any(_NORM.search(part) for part in parts[-2:])
    rules: tuple[tuple[bool, ComponentName], ...] = (
        (where.startswith(mixtures) or "expert" in path or "router" in path, "experts"),
        (any(part in attention for part in parts[:-2]), "attention"),
        (isinstance(module, torch.nn.Embedding), "embedding"),
        (is_norm, "norms"),
        (bool(attention), "attention"),
        ("embed" in path, "embedding"),
        (any(_MLP.search(part) for part in parts), "mlp"),
    )
    return next((component for holds, component in rules if holds), "other")


def _modules(
    rows: list[tuple[ComponentName, str, tuple[int, ...]]],
    routed: tuple[int, int] | None,
) -> list[ModuleSpec]:
    """Parameters of one place, in modules of one component each; the routed experts in one of their
    own.
    """
    tables: dict[tuple[ComponentName, str], dict[str, tuple[int, ...]]] = {}
    for component, where, shape in rows:
        parts = where.split(".")
        part = "experts" if "experts" in parts and component == "experts" else parts[0]
        tables.setdefault((component, part), {})[where] = shape
    out = []
    for (component, part), tensors in tables.items():
        values: dict[str, Any] = {}
        if part == "experts" and routed:
            values = {"top_k": routed[0], "experts": routed[1]}
        out.append(
            ModuleSpec(
                type="tensors", name=part[:100], component=component, values=values, tensors=tensors
            )
        )
    return out
