"""What families of Hugging Face models call their dimensions and which tensors they have: facts, no
code per family.

Read from the configuration and modelling classes of transformers 5.24.0 and 4.57.3. Each family's
class was built on torch's meta device, each of its keys (those it declares and those its modelling
code looks up) set to other values, and the tensors compared with ours: the keys under ``fields``
are the ones that change a tensor, those under ``neutral`` change none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zerocalc.spec.dimensions import GPT2_DROPOUT, ModelKind

REQUIRED: Literal["required"] = "required"
DERIVED: Literal["derived"] = "derived"


@dataclass(frozen=True, slots=True)
class Key:
    """Where a config keeps a value: its spellings, what its absence means, and whether null stands
    for "derived".

    ``absent``: ``REQUIRED`` refuses the file, ``DERIVED`` leaves the value to `Model` (as many
    key-value heads as heads, heads of hidden/heads, an MLP of 4·hidden), anything else is the
    default of the family's config class. A number of ours is required where the class has a default
    that fits one checkpoint only.
    """

    spellings: tuple[str, ...]
    absent: int | Literal["required", "derived"] = REQUIRED
    null: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``: the classes that are counted, the kind of `Model` they are, and where
    each of its fields comes from.
    """

    model_type: str
    architectures: tuple[str, ...]
    kind: ModelKind
    fields: Mapping[str, Key | bool]
    dropouts: Mapping[str, float] = field(default_factory=lambda: {"attention_dropout": 0.0})
    """Rates of dropout and their defaults."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The key that names the MLP's activation, and its default."""
    neutral: frozenset[str] = frozenset()
    """Keys of this family that change neither parameters nor memory."""


_TIED = Key(("tie_word_embeddings",), absent=True)
_ATTENTION_BIAS = Key(("attention_bias",), absent=False)
_MLP_BIAS = Key(("mlp_bias",), absent=False)
_KV_NULL = Key(("num_key_value_heads",), null=True)
_KV_GIVEN = Key(("num_key_value_heads",))
_HEAD_DIM_128 = Key(("head_dim",), absent=128)

_GPT2: dict[str, Key | bool] = {
    "layers": Key(("n_layer", "num_hidden_layers")),
    "hidden": Key(("n_embd", "hidden_size")),
    "heads": Key(("n_head", "num_attention_heads")),
    "ffn": Key(("n_inner",), absent=DERIVED, null=True),
    "vocab": Key(("vocab_size",)),
    "positions": Key(("n_positions", "max_position_embeddings")),
    "tied_embeddings": _TIED,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "qk_norm": False,
}
_LLAMA: dict[str, Key | bool] = {
    "layers": Key(("num_hidden_layers",)),
    "hidden": Key(("hidden_size",)),
    "heads": Key(("num_attention_heads",)),
    "kv_heads": Key(("num_key_value_heads",), absent=DERIVED, null=True),
    "head_dim": Key(("head_dim",), absent=DERIVED),
    "ffn": Key(("intermediate_size",)),
    "vocab": Key(("vocab_size",)),
    "positions": Key(("max_position_embeddings",), absent=DERIVED, null=True),
    "tied_embeddings": Key(("tie_word_embeddings",), absent=False),
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
}
_BIASES: dict[str, Key | bool] = {"qkv_bias": _ATTENTION_BIAS, "out_bias": _ATTENTION_BIAS}
_HEAD_DIM_NULL: dict[str, Key | bool] = {"head_dim": Key(("head_dim",), absent=DERIVED, null=True)}

FAMILIES = (
    Family(
        "gpt2",
        ("GPT2LMHeadModel",),
        "gpt2",
        _GPT2,
        dropouts={
            "resid_pdrop": GPT2_DROPOUT,
            "embd_pdrop": GPT2_DROPOUT,
            "attn_pdrop": GPT2_DROPOUT,
        },
        activation=("activation_function", "gelu_new"),
        neutral=frozenset(
            {
                "layer_norm_epsilon",
                "n_ctx",
                "reorder_and_upcast_attn",
                "scale_attn_by_inverse_layer_idx",
                "scale_attn_weights",
                "summary_activation",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
            }
        ),
    ),
    Family(
        "llama",
        ("LlamaForCausalLM", "LLaMAForCausalLM"),
        "llama",
        _LLAMA | _BIASES | _HEAD_DIM_NULL | {"mlp_bias": _MLP_BIAS},
    ),
    Family(
        "mistral",
        ("MistralForCausalLM",),
        "llama",
        _LLAMA | _HEAD_DIM_NULL | {"kv_heads": _KV_NULL},
    ),
    Family(
        "ministral3",
        ("Ministral3ForCausalLM",),
        "llama",
        _LLAMA | {"kv_heads": _KV_GIVEN, "head_dim": _HEAD_DIM_128},
    ),
    Family(
        "qwen2", ("Qwen2ForCausalLM",), "llama", _LLAMA | {"kv_heads": _KV_NULL, "qkv_bias": True}
    ),
    Family(
        "qwen3",
        ("Qwen3ForCausalLM",),
        "llama",
        _LLAMA | _BIASES | {"kv_heads": _KV_NULL, "head_dim": _HEAD_DIM_128, "qk_norm": True},
    ),
    Family(
        "smollm3",
        ("SmolLM3ForCausalLM",),
        "llama",
        _LLAMA | _BIASES | {"kv_heads": _KV_NULL, "mlp_bias": _MLP_BIAS, "tied_embeddings": _TIED},
        neutral=frozenset({"no_rope_layer_interval", "no_rope_layers"}),
    ),
    Family(
        "granite",
        ("GraniteForCausalLM",),
        "llama",
        _LLAMA | _BIASES | {"mlp_bias": _MLP_BIAS},
        neutral=frozenset(
            {
                "attention_multiplier",
                "embedding_multiplier",
                "logits_scaling",
                "residual_multiplier",
            }
        ),
    ),
    Family(
        "cwm",
        ("CwmForCausalLM",),
        "llama",
        _LLAMA | {"kv_heads": _KV_GIVEN, "head_dim": _HEAD_DIM_128, "mlp_bias": _MLP_BIAS},
    ),
    Family(
        "exaone4",
        ("Exaone4ForCausalLM",),
        "llama",
        _LLAMA | {"kv_heads": _KV_GIVEN, "qk_norm": True},
    ),
)
BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}

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

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Layers whose tensors are those of any attention; with flash attention what they save is too."""
