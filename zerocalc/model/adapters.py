"""Which tensors LoRA adapts, and how many elements the adapters have: r·(in + out) for each linear
layer (arXiv 2106.09685 §4.1).

What transformers calls each linear layer, and what PEFT adapts beyond them, is data
(``presets/targets``).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from zerocalc import presets
from zerocalc.formulas.states import adapter_parameters
from zerocalc.ledger import record
from zerocalc.model.module import Module, ParameterRow
from zerocalc.spec.base import FieldError
from zerocalc.spec.lora import ALL_LINEAR, Lora
from zerocalc.spec.model import Model

if TYPE_CHECKING:
    from zerocalc.model.architecture import Architecture

_DIGITS = re.compile(r"\d+")
_HEAD = "head"
_MATRIX = 2
_MOST_SHOWN = 12
_FUSED_EXPERTS = {
    **{"experts/experts.up": "up", "experts/experts.down": "down", "router/router": "router"},
    **{"experts/gate_up": "up", "experts down/down": "down"},
}
"""Tensors that PEFT adapts as parameters in some families, and what the table calls their targets.
"""


@record
class Adapted:
    """One adapted layer: its name in transformers, the tensors that are its weight, its rank, and
    its size, ``copies`` times.
    """

    path: str
    tensors: tuple[str, ...]
    rank: int
    inner: int
    outer: int
    copies: int = 1
    used: int = 1
    """Of its ``copies``, those that one token passes through."""

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Its adapter's two matrices, A and B; those of experts that are one tensor are as long, or
        wide, as all of them.
        """
        across = self.copies * self.rank
        return (across, self.inner), (self.outer, across)

    @property
    def elements(self) -> int:
        """Parameters of its adapter."""
        return self.copies * adapter_parameters(
            rank=self.rank, inputs=self.inner, outputs=self.outer
        )


@record
class Adapters:
    """The adapters of a model [elements]: before the layers, in one layer of each group, after
    them; ``active`` is what one token passes through, ``parts`` are (how often, adapted layers) in
    that order.
    """

    before: int
    groups: tuple[int, ...]
    after: int
    total: int
    active: int
    parts: tuple[tuple[int, tuple[Adapted, ...]], ...]
    unmatched: tuple[str, ...]

    @property
    def layers(self) -> tuple[tuple[int, Adapted], ...]:
        """Every adapted layer, and how often there is one like it."""
        return tuple([(count, layer) for count, part in self.parts for layer in part])

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The adapters' matrices, layer by layer."""
        return [
            shape
            for count, part in self.parts
            for _ in range(count)
            for layer in part
            for shape in layer.shapes
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of targets that name nothing beside others that do."""
        return (
            (
                f"{', '.join(self.unmatched)}: no such linear layer in this model, and "
                "passed over, as PEFT does",
            )
            if self.unmatched
            else ()
        )

    @property
    def factored(self) -> int:
        """A row and a column sum for both matrices of each adapter [Adafactor]."""
        return sum(
            [
                count * layer.copies * (layer.inner + layer.outer + 2 * layer.rank)
                for count, layer in self.layers
            ]
        )


class Names:
    """What transformers calls the tensors of one model's family."""

    def __init__(self, model: Model) -> None:
        table = _table()
        family = model.family if model.stack is not None else model.kind
        self.family = family
        self.common: dict[str, Any] = table["names"]
        own = table["by_family"].get(family)
        self.known = own is not None or model.stack is None or family is None
        self.own: dict[str, Any] = own or {}
        self.experts: dict[str, list[str]] = table["experts"].get(family, {})
        self.refused: list[str] = table["refused"].get(family, {}).get("targets", [])

    def of(self, module: str, tensor: str) -> Any:
        """The name of a tensor's layer, a list where it stands for several, empty where it is none;
        ``None`` where that is not known.
        """
        leaf = _DIGITS.sub("#", tensor.removesuffix(".weight"))
        for names in (self.own, self.common):
            for key in (f"{module}/{leaf}", leaf):
                if key in names:
                    return names[key]
        return None


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    data = presets.load("targets", "transformers")
    by_family = {
        model_type: entry.get("names", {})
        for entry in data["families"]
        for model_type in entry["model_types"]
    }
    others = {
        key: {model_type: entry for entry in data[key] for model_type in entry["model_types"]}
        for key in ("experts", "refused")
    }
    return {"names": data["names"], "by_family": by_family, **others}


def adapted(model: Model, name: str, module: str | None = None) -> bool:
    """Whether LoRA adapts the layer whose weight is the tensor ``name`` (``attention.q.weight`` or
    ``attention.q``) in a module of that name.

    Without ``module`` it is the one that the tensor's name begins with.
    """
    if model.lora is None:
        return False
    return _Choice(model, model.lora).rank(module or name.partition(".")[0], name) > 0


def merged(model: Model, name: str) -> int:
    """The rank of the adapter that PEFT adds to a parameter, such as all experts' ``experts.up``,
    before the product with it; 0 where it has none.
    """
    if model.lora is None:
        return 0
    return _Choice(model, model.lora).of_experts(name.partition(".")[0], name) or 0


def adapters(model: Model, arch: Architecture) -> Adapters | None:
    """The adapters of a model's LoRA; ``None`` without one.

    Raises `FieldError` where the targets name no layer of the model, or what transformers calls its
    layers is not known.
    """
    lora = model.lora
    if lora is None:
        return None
    choice = _Choice(model, lora)
    before = choice.layers(arch.before)
    groups = [choice.layers(modules) for _, modules in arch.groups]
    after = choice.layers(arch.after, tied=(arch.vocab, arch.hidden) if arch.tied else None)
    unmatched = choice.check()
    counts = [1, *[count for count, _ in arch.groups], 1]
    parts = tuple(
        [(count, tuple(part)) for count, part in zip(counts, (before, *groups, after), strict=True)]
    )
    sums = [sum([layer.elements for layer in part]) for _, part in parts]
    total = sum([count * amount for count, amount in zip(counts, sums, strict=True)])
    active = sum(
        [
            count * layer.elements * layer.used // layer.copies
            for count, part in parts
            for layer in part
        ]
    )
    return Adapters(sums[0], tuple(sums[1:-1]), sums[-1], total, active, parts, unmatched)


class _Choice:
    """The layers that one LoRA's targets pick, and which names were seen on the way."""

    def __init__(self, model: Model, lora: Lora) -> None:
        self.model, self.lora = model, lora
        self.names = Names(model)
        self.seen: dict[str, None] = {}
        self.matched: set[str] = set()
        if not self.names.known:
            raise FieldError(
                "model.lora.targets",
                f"what the linear layers of {self.names.family} are called is not known, "
                "so that none can be adapted",
            )
        self.all = lora.targets == (ALL_LINEAR,)
        self.by_expert = {
            target for key in _FUSED_EXPERTS.values() for target in self.names.experts.get(key, ())
        }
        self.split: list[str] = []

    def rank(self, module: str, tensor: str, linear: bool = True) -> int:
        """The rank of the adapter on a tensor; 0 where it has none."""
        name = self.names.of(module, tensor)
        fused = self.of_experts(module, tensor)
        if fused is not None:
            return fused
        if not name:
            return 0
        paths = [name] if isinstance(name, str) else name
        for path in paths:
            self.seen.setdefault(path.rpartition(".")[2])
        if self.all:
            left_out = (
                tensor.startswith(f"{_HEAD}.")
                or not linear
                or (self.by_expert and paths[0].rpartition(".")[2] in self.by_expert)
            )
            return 0 if left_out else self._taken(paths)
        hit = [
            [
                target
                for target in self.lora.targets
                if path == target or path.endswith(f".{target}")
            ]
            for path in paths
        ]
        if not any(hit):
            return 0
        if not all(hit):
            self.split += [target for targets in hit for target in targets]
        found = {target for targets in hit for target in targets}
        if self.by_expert & found and all(target in self.by_expert for target in found):
            return 0  # the experts have them
        self.matched |= found
        return self._taken(paths)

    def _taken(self, paths: list[str]) -> int:
        leaf = paths[0].rpartition(".")[2]
        if leaf in self.names.refused:
            raise FieldError(
                "model.lora.targets",
                f"PEFT refuses {leaf} in {self.names.family}, whose kernels pass its "
                "adapter by: name the others",
            )
        return self.lora.rank

    def of_experts(self, module: str, tensor: str) -> int | None:
        """The rank on experts that PEFT adapts as parameters; ``None`` where the tensor is not one
        of those.
        """
        key = _FUSED_EXPERTS.get(f"{module}/{tensor.removesuffix('.weight')}")
        if key is None or key not in self.names.experts:
            return None
        wanted, name = self.names.experts[key], self.names.of(module, tensor)
        if name and name.rpartition(".")[2] not in wanted:
            return None  # a linear layer of another name
        for target in wanted:
            self.seen.setdefault(target)
        named = (
            list(wanted)
            if self.all
            else [target for target in wanted if target in self.lora.targets]
        )
        self.matched.update(named)
        if named and len(named) < len(wanted):
            missing = next(target for target in wanted if target not in named)
            raise FieldError(
                "model.lora.targets",
                f"{named[0]} is fused with {missing} in the experts of "
                f"{self.names.family}: name both or neither",
            )
        return self.lora.rank * len(named)

    def layers(
        self, modules: tuple[Module, ...], tied: tuple[int, int] | None = None
    ) -> list[Adapted]:
        """The adapted layers of some modules; a tied head has no tensor of its own, but a layer
        that can be named.
        """
        out: list[Adapted] = []
        for module in modules:
            rows: list[ParameterRow] = [*module.parameter_rows]
            if tied is not None and module.name == _HEAD:
                rows.append(ParameterRow("head.weight", tied, True))
            parts: dict[str, list[ParameterRow]] = {}
            for row in rows:
                name, shape, linear = row
                if name.endswith("bias") or (
                    len(shape) != _MATRIX and not self.of_experts(module.name, name)
                ):
                    continue
                path = self.names.of(module.name, name)
                if path is None and linear:
                    raise FieldError(
                        "model.lora.targets",
                        f"whether {module.name} ({name}) of {self.names.family} is a "
                        "linear layer in transformers is not known",
                    )
                if self.rank(module.name, name, linear):
                    one = (
                        isinstance(path, str) and path and "#" not in path
                    )  # else each tensor is a layer of its own
                    parts.setdefault(path if one else name, []).append(row)
            out += [self._adapted(module, path, same) for path, same in parts.items()]
        return out

    def _adapted(self, module: Module, path: str, rows: list[ParameterRow]) -> Adapted:
        """Rows of one name are parts of one layer that share its input."""
        name, shape, linear = rows[0]
        tensors = tuple([row[0] for row in rows])
        copies = math.prod(shape[:-2])
        out, inner = (
            (-1, -2) if module.transposed and copies == 1 else (-2, -1)
        )  # experts that are one tensor are adapted as it lies
        outer = sum([row[1][out] for row in rows])
        return Adapted(
            path,
            tensors,
            self.rank(module.name, name, linear),
            shape[inner],
            outer,
            copies,
            copies * module.used // module.experts,
        )

    def check(self) -> tuple[str, ...]:
        """The targets that name no layer. Raises `FieldError` where all of them do, or where one
        names a part of what is counted together.
        """
        if self.split:
            raise FieldError(
                "model.lora.targets",
                f"{self.split[0]} names some of the layers that are counted together here: "
                f"{ALL_LINEAR} takes them all",
            )
        if self.all:
            return ()
        unmatched = tuple([target for target in self.lora.targets if target not in self.matched])
        if len(unmatched) == len(self.lora.targets):
            have = [*self.seen][:_MOST_SHOWN]
            if self.lora.assumed:
                ways = f"name layers with model.lora.targets: it has {', '.join(have)}"
                raise FieldError(
                    "model.lora.rank",
                    f"no linear layer of this model is called {' or '.join(unmatched)}, "
                    f"PEFT's defaults; {ways}",
                )
            raise FieldError(
                "model.lora.targets",
                f"no linear layer of this model is called {' or '.join(unmatched)}; it has "
                f"{', '.join(have)}",
            )
        return unmatched
