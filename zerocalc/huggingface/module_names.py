"""What Hugging Face's classes call the linear layers of a decoder, and which of them a list of
names or patterns means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIXES = (
    *(
        "model.layers.{i}",
        "model.language_model.layers.{i}",
        "language_model.model.layers.{i}",
        "transformer.h.{i}",
        "model.decoder.layers.{i}",
    ),
    *("gpt_neox.layers.{i}", "transformer.blocks.{i}", "transformer.encoder.layers.{i}"),
)
"""Where a decoder's layers are."""

_ATTENTION = ("self_attn", "attn", "self_attention", "attention", "self_attn.attn")
_MLP = ("mlp", "feed_forward", "ffn")
_EXPERTS = (
    "mlp.experts.{e}",
    "block_sparse_moe.experts.{e}",
    "feed_forward.experts.{e}",
    "mlp.experts",
    "feed_forward.experts",
    "experts.{e}",
)
_SHARED = (
    "mlp.shared_experts",
    "mlp.shared_expert",
    "feed_forward.shared_expert",
    "shared_mlp",
    "mlp.shared_mlp",
)


def _under(parents: tuple[str, ...], *children: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{child}" for parent in parents for child in children)


WITHIN: dict[str, tuple[str, ...]] = {
    "attention.q": _under(_ATTENTION, "q_proj", "wq", "query"),
    "attention.k": _under(_ATTENTION, "k_proj", "wk", "key"),
    "attention.v": _under(_ATTENTION, "v_proj", "wv", "value"),
    "attention.qkv": _under(_ATTENTION, "qkv_proj", "query_key_value", "c_attn", "Wqkv"),
    "attention.out": _under(_ATTENTION, "o_proj", "out_proj", "dense", "c_proj", "wo"),
    "attention.q_down": _under(_ATTENTION, "q_a_proj"),
    "attention.q_up": _under(_ATTENTION, "q_b_proj"),
    "attention.kv_down": _under(_ATTENTION, "kv_a_proj_with_mqa"),
    "attention.kv_up": _under(_ATTENTION, "kv_b_proj"),
    "mlp.up": (
        *_under(_MLP, "up_proj", "gate_up_proj", "c_fc", "fc1", "fc_in", "dense_h_to_4h", "w3"),
        "fc1",
    ),
    "mlp.gate": _under(_MLP, "gate_proj", "w1"),
    "mlp.down": (
        *_under(_MLP, "down_proj", "c_proj", "fc2", "fc_out", "dense_4h_to_h", "w2"),
        "fc2",
    ),
    "experts.up": _under(_EXPERTS, "up_proj", "gate_up_proj", "w3"),
    "experts.gate": _under(_EXPERTS, "gate_proj", "gate_up_proj", "w1"),
    "experts.down": _under(_EXPERTS, "down_proj", "w2"),
    "shared.up": _under(_SHARED, "up_proj"),
    "shared.gate": _under(_SHARED, "gate_proj"),
    "shared.down": _under(_SHARED, "down_proj"),
    "shared_gate": ("mlp.shared_expert_gate",),
    "router": ("mlp.gate", "block_sparse_moe.gate", "mlp.router", "feed_forward.router", "router"),
}
"""The names that a linear layer of ours can have inside a layer; ``{e}`` is an expert's number."""
OUTSIDE: dict[str, tuple[str, ...]] = {
    "head": ("lm_head", "language_model.lm_head", "embed_out", "transformer.output_layer")
}

NOT_LINEAR = re.compile(
    r"norm|embed|(^|\.)ln_|wte|wpe|visual|vision|audio|projector|patch|merger|(^|\.)mtp|rotary|e_score_correction_bias|sinks",
    re.IGNORECASE,
)
"""What lists name beside linear layers of a decoder: nothing that a quantiser meets there."""

_PLAIN = re.compile(r"[\w.\-]+")
_IN_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.(?P<index>\d+)(?:\.(?P<rest>.+))?")
_ONE_EXPERT = re.compile(r"(^|\.)experts\.\d+(\.|$)")
_INTRICATE = re.compile(r"\)\s*[*+{]|\\[1-9]|\(\?P")
"""A group that is repeated, named or referred to."""
_MOST_REPEATS = 4
_LONGEST = 300
_MOST = 50_000
_MOST_TRIED = 10_000_000
"""Expressions times names of one kind of layer; a list of one expression a layer, for 120 layers,
is a tenth of that.
"""
Where = dict[str, set[int]]


class NamesError(ValueError):
    """A list of names that cannot be followed exactly; the message is one line."""


class Names:
    """A list of modules' names, parts of their paths, or regular expressions: which linear layers
    of which layers it means.

    As transformers reads such lists (quantizers_utils.should_convert_module: from the start to a
    dot, or at the end), and its version 4 too, for which a part of a path stands for all under it.
    ``marked``: only what starts with ``re:`` is an expression (compressed-tensors).
    """

    def __init__(self, names: Iterable[str], *, marked: bool = False) -> None:
        self.whole: list[str] = []
        self.in_layers: dict[int, list[str]] = {}
        self.patterns: list[tuple[str, re.Pattern[str]]] = []
        self.met: set[str] = set()
        for count, name in enumerate(names):
            if count >= _MOST or len(name) > _LONGEST:
                raise NamesError("is too long a list of names")
            self._read(name, marked)

    def _read(self, name: str, marked: bool) -> None:
        expression = name.removeprefix("re:") if marked and name.startswith("re:") else None
        if expression is None and not _PLAIN.fullmatch(name) and not marked:
            expression = name
        if expression is not None:
            self.patterns.append((name, _compiled(expression, bounded=not marked)))
        elif _ONE_EXPERT.search(name) and not NOT_LINEAR.search(name):
            raise NamesError(f"names single experts ({name[:60]!r}), which is not counted yet")
        elif inside := _IN_LAYER.fullmatch(name):
            self.in_layers.setdefault(int(inside["index"]), []).append(inside["rest"] or "")
        else:
            self.whole.append(name)

    @property
    def numbered(self) -> list[tuple[str, re.Pattern[str]]]:
        """The expressions that may mean some layers and not others."""
        return [one for one in self.patterns if re.search(r"\d", one[0])]

    def layers(self, key: str, count: int) -> set[int]:
        """In which of ``count`` layers the list means a linear layer of ours."""
        names = [name.replace(".{e}", ".0") for name in WITHIN[key]]
        if any(self._means(one, name) for one in self.whole for name in names):
            return set(range(count))
        found = {
            i
            for i, rests in self.in_layers.items()
            if i < count
            and any(not rest or self._inside(rest, name) for rest in rests for name in names)
        }
        numbered = self.numbered
        for patterns, numbers in (
            (numbered, range(count)),
            ([one for one in self.patterns if one not in numbered], range(min(count, 1))),
        ):
            hits = self._hits(
                patterns,
                [
                    (i, f"{prefix.format(i=i)}.{name}")
                    for i in numbers
                    for prefix in PREFIXES
                    for name in names
                ],
            )
            found |= hits if patterns is numbered or not hits else set(range(count))
        return found

    def _hits(
        self, patterns: list[tuple[str, re.Pattern[str]]], names: list[tuple[int, str]]
    ) -> set[int]:
        """The layers of which some expressions match a name; all expressions tried as one, for
        there may be one a layer.
        """
        if not patterns:
            return set()
        if len(patterns) * len(names) > _MOST_TRIED:
            raise NamesError("is too long a list of expressions")
        one_of_them = re.compile("|".join(pattern.pattern for _, pattern in patterns))
        hits = [(i, name) for i, name in names if one_of_them.match(name)]
        self.met.update(
            text for text, pattern in patterns if any(pattern.match(name) for _, name in hits)
        )
        return {i for i, _ in hits}

    def outside(self, key: str) -> bool:
        """Whether the list means a linear layer outside the layers."""
        names = OUTSIDE[key]
        plain = any(self._means(one, name) for one in self.whole for name in names)
        hits = [
            text for text, pattern in self.patterns if any(pattern.match(name) for name in names)
        ]
        self.met.update(hits)
        return plain or bool(hits)

    def _means(self, one: str, name: str) -> bool:
        """Whether a name without a layer's number means ``name``: its start, its end, or a part of
        its path.
        """
        found = name.endswith(one) or f".{one}." in f".{name}."
        if found:
            self.met.add(one)
        return found

    @staticmethod
    def _inside(rest: str, name: str) -> bool:
        return name == rest or name.startswith(f"{rest}.")

    def unmet(self) -> list[str]:
        """The names that meant nothing, but for those that speak of what is no linear layer of a
        decoder.
        """
        known = [name for names in WITHIN.values() for name in names]
        strange = [
            rest
            for rests in self.in_layers.values()
            for rest in rests
            if rest and not any(self._inside(rest, name) for name in known)
        ]
        names = [*self.whole, *(text for text, _ in self.patterns), *strange]
        return sorted(
            {name for name in names if name not in self.met and not NOT_LINEAR.search(name)}
        )


def _compiled(expression: str, *, bounded: bool) -> re.Pattern[str]:
    """An expression that is read in a time that does not run away: no repeated groups, few
    repeats.
    """
    if (
        _INTRICATE.search(expression)
        or sum(expression.count(sign) for sign in "*+{") > _MOST_REPEATS
    ):
        raise NamesError(f"{expression[:60]!r} is too intricate an expression")
    try:
        return re.compile(
            rf"(?:{expression})(?:(?<=\.)|(?=\.|$))" if bounded else rf"(?:{expression})"
        )  # a plain list's ends where a part of a path does
    except (re.error, OverflowError, RecursionError):
        raise NamesError(f"{expression[:60]!r} is no regular expression") from None
