"""What the keys of a config hold: switches, numbers, texts, lists and tables; a value of another
kind is refused before anything is counted.

A family's default says what its key is; for keys without one the name does, and all others are
sizes: whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from zerocalc.huggingface.expressions import ExpressionError
from zerocalc.quantities import shown

SWITCH, WHOLE, SIGNED, NUMBER, TEXT = (
    "true or false",
    "a whole number",
    "a whole number that may be negative",
    "a number",
    "a text",
)
RANK, CHOICE, PATTERN, LIST = (
    "a whole number or auto",
    "true, false or a text",
    "a text or a list",
    "a list",
)
WHOLES, WORDS, TABLE = "a list of whole numbers", "a list of names", "a table"

BY_NAME = {
    **dict.fromkeys(
        (
            "attention_bias",
            "is_gated_act",
            "mlp_bias",
            "multi_query",
            "new_decoder_architecture",
            "parallel_attn",
            "qk_layernorm",
            "tie_embedding",
            "tie_word_embeddings",
            "use_dsa",
        ),
        SWITCH,
    ),
    **dict.fromkeys(
        (
            "attention_dropout",
            "attn_logit_softcapping",
            "clip_qkv",
            "final_logit_softcapping",
            "hidden_dropout",
            "moe_jitter_eps",
            "moe_normalize_expert_weights",
            "partial_rotary_factor",
            "rope_theta",
        ),
        NUMBER,
    ),
    **dict.fromkeys(
        (
            "architecture",
            "hidden_act",
            "hybrid_override_pattern",
            "model_type",
            "name",
            "position_embedding_type",
        ),
        TEXT,
    ),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank"), RANK),
    "gating": CHOICE,
    "index_topk_pattern": PATTERN,
    **dict.fromkeys(
        (
            "activation_sparsity_pattern",
            "layer_rope_theta",
            "sscp_conv_kernel_size",
            "sscp_conv_stride_size",
            "supported_aspect_ratios",
        ),
        LIST,
    ),
    **dict.fromkeys(("moe_layer_end_index", "vision_feature_layer"), SIGNED),
    **dict.fromkeys(
        (
            "attn_layer_indices",
            "axial_pos_embds_dim",
            "axial_pos_shape",
            "compress_ratios",
            "cross_attention_layers",
            "full_attn_idxs",
            "full_attn_layers",
            "hybrid_layer_ids",
            "local_layer_ids",
            "mlp_only_layers",
            "moe_layers",
            "no_rope_layers",
            "num_attention_heads_per_layer",
            "ple_layer_ids",
            "sscp_conv_channel_size",
            "subsampling_conv_channels",
        ),
        WHOLES,
    ),
    **dict.fromkeys(
        (
            "attn_layers",
            "block_types",
            "indexer_types",
            "languages",
            "layer_types",
            "layers_block_type",
            "mlp_layer_types",
        ),
        WORDS,
    ),
    **dict.fromkeys(
        (
            "compress_rates",
            "ffn_act_fn",
            "full_attention",
            "model_args",
            "rope_parameters",
            "sliding_attention",
        ),
        TABLE,
    ),
}
"""What keys hold whatever a default is, but for sizes; compared with what the configuration classes
of transformers 5.24.0 declare.
"""

BY_DEFAULT: tuple[tuple[type, str], ...] = (
    (bool, SWITCH),
    (int, WHOLE),
    (float, NUMBER),
    (str, TEXT),
    (list, WHOLES),
    (Mapping, TABLE),
)
"""What keys hold by their default; the first that fits."""

ONE_EACH = frozenset(
    {
        "indexer_types",
        "layer_types",
        "layers_block_type",
        "mlp_layer_types",
        "no_rope_layers",
        "num_attention_heads_per_layer",
    }
)
"""Lists with one entry for each layer; transformers 5.24.0 (configuration_utils.py) refuses others,
but takes an empty no_rope_layers for none.
"""
KINDS_OF_LAYERS = frozenset(
    {
        "attention",
        "chunked_attention",
        "compressed_sparse_attention",
        "conv",
        "deepseek_sparse_attention",
        "dense",
        "full",
        "full_attention",
        "heavily_compressed_attention",
        "hybrid",
        "hybrid_sliding",
        "indexed_attention",
        "linear_attention",
        "mamba",
        "minimax_m3_sparse",
        "moe",
        "qwen_sparse_attention",
        "reference_sliding_attention",
        "shared",
        "sliding_attention",
        "sparse",
        "window_attention",
    }
)
"""What transformers 5.24.0 (configuration_utils.py) lets such lists hold, old names too; a family's
file may name others.
"""
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Keys that say how many layers a table describes."""
ANYWHERE = frozenset({"max_position_embeddings", "n_positions"})
"""Sizes of any config, whatever they change."""
_LONGEST_NUMBER = 1024
"""Bits; Python refuses to print some longer numbers at all."""


def check_keys(
    config: Mapping[str, Any],
    read: AbstractSet[str],
    defaults: Mapping[str, Any],
    lists_too: AbstractSet[str] = frozenset(),
) -> None:
    """Refuse a value that its key cannot hold: of the keys that are ``read``, in nested tables too.

    ``defaults`` are the family's, ``lists_too`` sizes that may be lists, one a layer or one a
    dimension. Null says nothing and is left to whoever reads it. Raises `ExpressionError`, which
    starts with the key.
    """
    _check(config, read, defaults, lists_too, "")


def check_lists(table: Mapping[str, Any], path: str = "") -> None:
    """Refuse a list of layers that has not one entry for each."""
    layers = next((table[key] for key in COUNTS if _whole(table.get(key)) and table[key] > 0), None)
    for key in sorted(ONE_EACH & table.keys()):
        value = table[key]
        if (
            isinstance(value, list)
            and layers is not None
            and (value or key != "no_rope_layers")
            and len(value) != layers
        ):
            many = "1 entry" if len(value) == 1 else f"{len(value):,} entries"
            raise ExpressionError(
                f"{path}{key}: {many}, not one for each of {shown(layers)} layers", key
            )


def check_sizes(table: Mapping[str, Any], path: str = "") -> None:
    """Refuse sizes of any config that are none, whether or not they change something."""
    for key in sorted(ANYWHERE & table.keys()):
        value = table[key]
        if value is not None and (not _whole(value) or value < 1):
            raise ExpressionError(
                f"{path}{key}: {spelled(value)} is not {'at least 1' if _whole(value) else WHOLE}",
                key,
            )


def _check(
    table: Mapping[str, Any],
    read: AbstractSet[str],
    defaults: Mapping[str, Any],
    lists_too: AbstractSet[str],
    path: str,
) -> None:
    check_sizes(table, path)
    check_lists(table, path)
    for key, value in table.items():
        if key not in read or value is None:
            continue
        default = defaults.get(key)
        kind = _kind(key, default)
        if key in lists_too and isinstance(value, list):
            kind = LIST if kind == SIGNED else WHOLES
        if not HOLDS[kind](value):
            small = (kind == WHOLE and _whole(value)) or (kind == NUMBER and _number(value))
            raise ExpressionError(
                f"{path}{key}: {spelled(value)} is not {'at least 0' if small else kind}", key
            )
        unknown = (
            [word for word in value if word not in read and word not in KINDS_OF_LAYERS]
            if kind == WORDS and key in ONE_EACH
            else []
        )
        if unknown:
            raise ExpressionError(
                f"{path}{key}: {spelled(unknown[0])} is no kind of layer that is counted yet", key
            )
        if isinstance(value, Mapping):
            _check(
                value,
                read,
                default if isinstance(default, Mapping) else {},
                lists_too,
                f"{path}{key}.",
            )


def _kind(key: str, default: object) -> str:
    """What a key holds."""
    if key in BY_NAME:
        return BY_NAME[key]
    if key.endswith("_config") or key.isdigit():
        return TABLE
    return next((kind for type_, kind in BY_DEFAULT if isinstance(default, type_)), WHOLE)


def _number(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (isinstance(value, int) or math.isfinite(value))
    )


def _whole(value: object) -> bool:
    return _number(value) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )


HOLDS: dict[str, Callable[[Any], bool]] = {
    SWITCH: lambda value: isinstance(value, bool),
    WHOLE: lambda value: _whole(value) and value >= 0,
    SIGNED: _whole,
    NUMBER: lambda value: _number(value) and value >= 0,
    TEXT: lambda value: isinstance(value, str),
    RANK: lambda value: value == "auto" or (_whole(value) and value > 0),
    CHOICE: lambda value: isinstance(value, (bool, str)),
    LIST: lambda value: isinstance(value, list),
    PATTERN: lambda value: isinstance(value, (str, list)),
    WHOLES: lambda value: (
        isinstance(value, list)
        and all(isinstance(entry, bool) or (_whole(entry) and entry >= 0) for entry in value)
    ),
    WORDS: lambda value: isinstance(value, list) and all(isinstance(entry, str) for entry in value),
    TABLE: lambda value: isinstance(value, Mapping),
}
"""Whether a value is what a key of a kind holds."""


def spelled(value: object) -> str:
    """A value as JSON spells it; tables and lists are only named, for they may be large or deep."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        return (
            "a number of hundreds of digits"
            if value > 0
            else "a negative number of hundreds of digits"
        )
    return shown(value)
