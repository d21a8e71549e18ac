"""The dimensions of a decoder that is described by its kind: which there are, and what those that
are not given follow from.
"""

from typing import Any, Literal

from zerocalc.quantities import parse_whole

ModelKind = Literal["gpt2", "llama"]
DEFAULT_KIND: ModelKind = "gpt2"

GPT2_DROPOUT = 0.1
"""GPT-2's residual, embedding and attention dropout (openai/gpt-2; config.json of the gpt2
checkpoints).
"""
GPT2_VOCAB = 50257
GPT2_POSITIONS = 1024
LLAMA_VOCAB = 32000
FFN_FACTOR = 4
"""[ZeRO], [SP]: the MLP is four hidden sizes wide."""
LLAMA_FFN_MULTIPLE = 256
"""Llama's reference code rounds two thirds of 4·hidden up to a multiple of this."""

DIMENSIONS = (
    *("kind", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions"),
    *("tied_embeddings", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "dropout", "activation"),
)
REQUIRED = ("layers", "hidden", "heads")


def only_given(data: dict[str, Any], fields: tuple[str, ...] = DIMENSIONS) -> dict[str, Any]:
    """A model's table without what was filled in of some fields and the words for it; validation
    fills it in anew.
    """
    filled = data.get("filled")
    if (
        not filled
        or not isinstance(filled, (list, tuple))
        or not all(isinstance(field, str) for field in filled)
    ):
        return data
    kept = {key: value for key, value in data.items() if not (key in filled and key in fields)}
    kept["filled"] = [field for field in filled if field not in fields]
    lines = data.get("assumed")
    if isinstance(lines, (list, tuple)):
        said = (*filled_in(kept)[1], positions_for(data.get("positions")))
        kept["assumed"] = [line for line in lines if line not in said]
    return kept


def positions_for(tokens: object) -> str:
    """The words for learned positions that follow from the sequence length."""
    return f"{tokens:,} learned positions (the sequence length)" if isinstance(tokens, int) else ""


def filled_in(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The architecture's missing dimensions, from its kind, and what is a guess among them, in
    words.
    """
    out: dict[str, Any] = {}
    assumed: list[str] = []

    def fill(key: str, value: Any, words: str | None = None) -> None:
        if data.get(key) is None:
            out[key] = value
            if words:
                assumed.append(words)

    def whole(key: str) -> int | None:
        """A dimension if it reads as one; a wrong one is reported by its own field's validation."""
        try:
            return parse_whole(data.get(key))
        except ValueError:
            return None

    fill(
        "kind",
        DEFAULT_KIND,
        "kind gpt2 (LayerNorm, learned positions, plain MLP); --kind llama for gated MLPs "
        "and RMSNorm",
    )
    llama = data.get("kind", DEFAULT_KIND) == "llama"
    hidden, heads = whole("hidden"), whole("heads")
    fill("kv_heads", heads)
    if hidden and heads and hidden % heads == 0:
        fill("head_dim", hidden // heads)
    if hidden and llama:
        two_thirds = 2 * FFN_FACTOR * hidden // 3
        ffn = -(-two_thirds // LLAMA_FFN_MULTIPLE) * LLAMA_FFN_MULTIPLE
        fill(
            "ffn",
            ffn,
            f"ffn {ffn:,} (2/3 of 4·hidden, rounded up to {LLAMA_FFN_MULTIPLE}, as Llama's "
            "code does)",
        )
    elif hidden:
        fill("ffn", FFN_FACTOR * hidden)
    vocab = LLAMA_VOCAB if llama else GPT2_VOCAB
    fill("vocab", vocab, f"vocabulary {vocab:,} ({'Llama 2' if llama else 'GPT-2'}'s)")
    if not llama:
        fill("positions", GPT2_POSITIONS, f"{GPT2_POSITIONS:,} learned positions (GPT-2's)")
    fill(
        "tied_embeddings",
        not llama,
        "embedding and head tied (GPT-2's way)"
        if not llama
        else "embedding and head untied (Llama's way)",
    )
    for bias in ("qkv_bias", "out_bias", "mlp_bias"):
        fill(bias, not llama)
    fill("qk_norm", False)
    fill("activation", "silu" if llama else "gelu_new")
    fill(
        "dropout",
        0.0 if llama else GPT2_DROPOUT,
        None if llama else f"dropout {GPT2_DROPOUT} and biases everywhere (GPT-2's)",
    )
    return out, assumed
