"""Keys that any config may hold: those that change nothing, those that are refused, and what names
of unknown keys speak of.

Read from the configuration and modelling classes of transformers 5.24.0 and 4.57.3: each key was
set to other values, and the tensors of the built class compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from zerocalc.huggingface.key_types import spelled
from zerocalc.huggingface.reader import WAYS_OUT, Reader, quoted

QUANTISED = "quantization_config"
ACTIVATIONS = frozenset({"hidden_act", "hidden_activation", "activation_function"})
"""Keys that name a function: whatever it is changes no tensor, but a number there is a slip of the
pen.
"""
_LISTED = 6
"""Unknown keys that a note names; the rest is counted."""

NEUTRAL = frozenset(
    {
        # what the file is, and where it came from
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "auto_map",
        "model_type",
        "name_or_path",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        # the type checkpoints are stored in; a recipe says in which one a model is trained
        "dtype",
        "torch_dtype",
        "use_bfloat16",
        # functions without parameters of their own: activations, positions, masks, scales, initial
        # values
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "attn_implementation",
        "hidden_act",
        "initializer_range",
        "is_decoder",
        "layer_norm_eps",
        "layer_types",
        "max_window_layers",
        "partial_rotary_factor",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_interleaved",
        "rope_local_base_freq",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "sliding_window_pattern",
        "use_cache",
        "use_sliding_window",
        # the tokenizer
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "mask_token_id",
        "pad_token_id",
        "prefix",
        "sep_token_id",
        "tokenizer_class",
        "unk_token_id",
        # classification and tasks, of which a causal model makes nothing
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "task_specific_params",
        # what a call returns, and how it runs
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
        "tf_legacy_loss",
        "torchscript",
        # generation
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "remove_invalid_values",
        "repetition_penalty",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)
"""Keys of any config that change neither parameters nor memory."""

GUARDED = {
    "add_cross_attention": "cross-attention layers",
    "cross_attention_hidden_size": "cross-attention layers",
    "is_encoder_decoder": "encoders",
    "pruned_heads": "pruned heads",
    "tie_encoder_decoder": "encoders",
}
"""Keys that any config may hold and that mean, unless false, empty or null, tensors that are not
counted yet.
"""

WRITTEN_OUT = frozenset({"is_encoder_decoder", "tie_encoder_decoder"})
"""Of those, what says nothing more where a family's file writes out the modules of a class."""

SUSPECTS = {
    "expert": "experts",
    "moe": "experts",
    "router": "experts",
    "quant": "quantised weights",
    "lora_rank": "latent attention",
    "latent": "latent attention",
    "lora": "adapters",
    "adapter": "adapters",
    "mamba": "state-space layers",
    "ssm": "state-space layers",
    "state_size": "state-space layers",
    "linear_attention": "linear attention",
    "conv_": "convolutions",
    "vision": "vision towers",
    "image": "vision towers",
    "video": "vision towers",
    "audio": "audio towers",
    "speech": "audio towers",
    "encoder": "encoders",
    "text_config": "nested configs",
    "mtp": "multi-token prediction",
    "nextn": "multi-token prediction",
    "share": "shared layers",
    "per_layer": "layers that differ",
    "block_config": "layers that differ",
    "cross_attention": "cross-attention layers",
    "prune": "pruned heads",
    "_config": "nested configs",
}
"""Parts of keys' names that speak of tensors which are not counted yet, the telling ones first."""


def check_guarded(reader: Reader, known: AbstractSet[str]) -> None:
    """Refuse keys of any config that mean tensors of other kinds, except those that a family's file
    knows.
    """
    for key, what in GUARDED.items():
        if reader.table.get(key) and key not in known:
            reader.refuse(key, f"{what} are not counted yet; {WAYS_OUT}")


def check_known(
    reader: Reader, model_type: str, known: AbstractSet[str], table: Mapping[str, Any]
) -> None:
    """Refuse a key that the family does not know where its name speaks of tensors; note it
    otherwise.
    """
    for key in ACTIVATIONS & table.keys():
        if table[key] is not None and not isinstance(table[key], str):
            reader.refuse(key, f"{spelled(table[key])} is not the name of an activation function")
    expected = known | NEUTRAL | GUARDED.keys() | {QUANTISED}
    unknown = [key for key in table if key not in expected]
    for key in unknown:
        what = suspicion(key)
        if what and table[key]:
            reader.refuse(
                key,
                f"is not known for model_type {model_type}, and {what} are not counted "
                f"yet; {WAYS_OUT}",
            )
    if unknown:
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        plural = "keys" if len(unknown) > 1 else "key"
        reader.notes.append(
            f"config {plural} not known, taken as changing nothing: "
            f"{', '.join(map(quoted, unknown[:_LISTED]))}{more}"
        )


def suspicion(key: str) -> str | None:
    """The tensors that a key's name speaks of, if it does; ids of tokens are numbers only."""
    lower = key.lower()
    if lower.endswith(("_token_id", "_token_index", "_token_ids")):
        return None
    return next((what for part, what in SUSPECTS.items() if part in lower), None)
