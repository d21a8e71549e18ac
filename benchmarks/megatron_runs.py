"""Runs of Megatron-LM as jobs: its own continuous integration, and SimuMax's on eight B200."""

from __future__ import annotations

import re
from collections.abc import Iterator

from run_rows import GIB, Prediction, Row, UnstatedError, peak

from zerocalc import presets
from zerocalc.estimator import estimate
from zerocalc.spec.job import Job

GPT2_VOCAB = 50257
BERT_VOCAB = 28996
"""bert-large-cased."""
VOCAB_MULTIPLE = 128
"""Megatron-LM's --make-vocab-size-divisible-by; it is multiplied by the tensor-parallel degree."""
NULL_TOKENIZER_EXTRA = 1
"""Megatron-LM's NullTokenizer adds an end-of-document token."""

OTHER_FAMILIES = ("t5", "hybrid", "mimo", "nemotron", "mixtral")
LEFT_OUT = {
    "mla": "latent attention",
    "modelopt": "quantisation-aware training",
    "frozen": "frozen parts that are not named",
    "uneven": "uneven stages that are not stated",
    "grpo": "reinforcement learning",
    "deepseek_proxy": "latent attention",
    "defer_embedding_wgrad": "the head's weight gradient is deferred over micro-batches",
    "account_for_embedding": "stages that count embedding and loss as layers",
    "muon": "Muon",
    "fp8": "8-bit linear layers",
    "mfsdp": "Megatron-FSDP",
}
"""Words in a test's name, or columns, and why the row is left out."""
GPUS = {"a100": "a100-80g", "h100": "h100-80g", "dgxh100": "h100-80g", "gb200": "gb200"}


def refuse(row: Row) -> None:
    """Raise `UnstatedError` for a row that cannot be predicted."""
    if row["family"] in OTHER_FAMILIES:
        raise UnstatedError(f"family {row['family']} is not a decoder of a known kind")
    for word, reason in LEFT_OUT.items():
        if word in row["test"] or row.get(word):
            raise UnstatedError(reason)
    if row["gbs"] // row["mbs"] % row["pp"] and row.get("layers_per_vp"):
        raise UnstatedError("rounds of micro-batches that the columns don't state")


def megatron_job(row: Row) -> Job:
    """A row of Megatron-LM's continuous integration; the reading is of the last rank, on the last
    pipeline stage.
    """
    refuse(row)
    tp, pp, cp = row["tp"], row["pp"], row["cp"]
    gpus = row["nodes"] * row["gpus_per_node"]
    dp = gpus // (tp * pp * cp)
    given: Row = {
        "model": {"stack": megatron_stack(row)},
        "cluster": {"gpus": gpus, "gpus_per_node": row["gpus_per_node"], **workspaces(row)},
        "framework": "megatron",
        "implementation": implementation(row),
        "training": training(row, dp),
        "parallel": parallel(row),
        "zero": {"stage": 1 if row.get("dist_opt") else 0},
    }
    if row.get("loss_fusion") or "cross_entropy_loss_fusion" in row["test"]:
        given["loss"] = "parallel-fused"
    if row.get("fp16"):
        given["recipe"] = "mixed-adam"
    if row.get("optimizer_instances", 1) > 1 or "multi_dist_optimizer_instances" in row["test"]:
        given["zero"]["shard_group"] = dp * cp // row.get("optimizer_instances", 2)
    return Job.model_validate(given)


def transformer_engine(row: Row) -> bool:
    """Whether Transformer Engine's layers are used: --transformer-impl's default."""
    return (
        bool(row.get("impl", "transformer_engine") == "transformer_engine")
        and "local_spec" not in row["test"]
    )


def implementation(row: Row) -> str | Row:
    """Whose layers: Transformer Engine's, with weight gradients added by its kernels or after them,
    or Megatron-LM's own.

    Experts run one after the other unless their products are grouped.
    """
    if not transformer_engine(row):
        return "megatron"
    name = "megatron-te-added" if row.get("no_grad_fusion") else "megatron-te"
    return (
        {**presets.load("implementations", name), "grouped_workspaces": 0}
        if row.get("experts") and not row.get("grouped_gemm")
        else name
    )


def training(row: Row, dp: int) -> Row:
    """How a batch is run."""
    flash = transformer_engine(row) and row.get("attn") != "unfused"
    out: Row = {
        "seq": row["seq"],
        "micro_batch": row["mbs"],
        "accumulation": row["gbs"] // row["mbs"] // dp,
        "attention": "flash" if flash else "eager",
    }
    return {**out, "recompute": row["recompute"]} if row.get("recompute") else out


def parallel(row: Row) -> Row:
    """The degrees, and the last pipeline stage."""
    tp, pp = row["tp"], row["pp"]
    out: Row = {
        "tp": tp,
        "pp": pp,
        "cp": row["cp"],
        "sequence_parallel": bool(row.get("sp")) and tp > 1,
    }
    if row.get("experts"):
        out |= {"ep": row["ep"], "etp": row.get("etp", tp)}
    if pp > 1:
        out["pipeline_stage"] = pp
        if row.get("layers_per_vp"):
            out["interleave"] = row["layers"] // pp // row["layers_per_vp"]
    return out


def workspaces(row: Row) -> Row:
    """The GPU, and what cuBLAS is told to hold. The tests set CUBLAS_WORKSPACE_CONFIG but where
    they need not be deterministic.
    """
    platform = row["platform"].split("_")
    gpu = next((name for word, name in GPUS.items() if word in platform), "a100-80g")
    told = row.get("cublas_workspace") or (None if "nondeterministic" in row["test"] else ":4096:8")
    out: Row = {"gpu": gpu, "workspaces": True}
    if told and told != "default":
        kib, count = (int(part) for part in str(told).strip(":").split(":"))
        out["cublas_workspace"] = kib * count << 10
    return out


def megatron_stack(row: Row) -> Row:
    """The modules of Megatron-LM's GPT as its flags say."""
    hidden, heads, tp = row["hidden"], row["heads"], row["tp"]
    multiple = row.get("vocab_multiple", VOCAB_MULTIPLE) * tp
    bert = row["family"] == "bert"
    vocab = row.get("vocab") or (BERT_VOCAB if bert else GPT2_VOCAB)
    if row.get("tokenizer") == "NullTokenizer":
        vocab += NULL_TOKENIZER_EXTRA
    vocab = row.get("padded_vocab") or -(-vocab // multiple) * multiple
    rope, bias, gated = (
        row.get("pos") == "rope",
        not row.get("disable_bias"),
        bool(row.get("swiglu")),
    )
    dropout = "dropout_att" not in row or float(row["dropout_att"]) > 0
    head_dim = row.get("kv_channels") or hidden // heads
    norm = {
        "dim": hidden,
        "bias": row.get("normalization") != "RMSNorm",
        "kind": "rms" if row.get("normalization") == "RMSNorm" else "layer",
    }
    attention: Row = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": row.get("gqa_groups") or heads,
        "head_dim": head_dim,
        "fused": True,
        "q_bias": bias,
        "out_bias": bias,
        "rotary": rope,
        "dropout": dropout,
        "residual_dropout": dropout,
    }
    if row.get("qk_norm"):
        attention |= {"qk_norm": "head", "qk_norm_bias": norm["bias"]}
    mlp = {
        "hidden": hidden,
        "ffn": row.get("ffn") or (4 * hidden * 2 // 3 // 64 * 64 if gated else 4 * hidden),
        "gated": gated,
        "fused": True,
        "bias": bias,
        "residual_dropout": dropout,
        "activation": "silu" if gated else "gelu",
    }
    layer = [
        {"type": "norm", "name": "attention norm", "values": norm},
        {"type": "attention", "name": "attention", "values": attention},
        {"type": "norm", "name": "mlp norm", "values": norm},
        routed(row, mlp) if row.get("experts") else {"type": "mlp", "name": "mlp", "values": mlp},
    ]
    before = {
        "vocab": vocab,
        "dim": hidden,
        "positions": 0 if rope else row["seq"],
        "dropout": dropout,
        "rotary_dim": head_dim if rope else 0,
    }
    after = [
        {"type": "norm", "name": "final norm", "values": norm},
        {
            "type": "head",
            "name": "head",
            "values": {"vocab": vocab, "dim": hidden, "tied": not row.get("untied"), "bias": bert},
        },
    ]
    embedding: list[Row] = [{"type": "embedding", "name": "embedding", "values": before}]
    if bert:
        embedding.append(
            {
                "type": "tensors",
                "name": "token types",
                "tensors": {"token_types.weight": (2, hidden)},
            }
        )
        after.insert(1, {"type": "tensors", "name": "heads' layers", "tensors": bert_heads(hidden)})
    return {
        "activations": True,
        "before": embedding,
        "groups": [{"count": row["layers"], "modules": layer}],
        "after": after,
    }


def routed(row: Row, mlp: Row) -> Row:
    """The routed experts of every layer, each with tensors of its own, and shared ones."""
    if row.get("moe_layer_freq"):
        raise UnstatedError("layers without experts among others")
    values = {
        **{key: mlp[key] for key in ("hidden", "gated", "bias", "activation")},
        "experts": row["experts"],
        "top_k": row["topk"],
        "ffn": row.get("moe_ffn") or mlp["ffn"],
        "layout": "each",
        "shared_ffn": row.get("shared_ffn", 0),
        "scores": "compute",
    }
    return {"type": "moe", "name": "experts", "values": values}


def bert_heads(hidden: int) -> dict[str, tuple[int, ...]]:
    """BERT's pooler and binary head, and the layer before its language model's head."""
    square, line = (hidden, hidden), (hidden,)
    return {
        "pooler.weight": square,
        "pooler.bias": line,
        "binary_head.weight": (2, hidden),
        "binary_head.bias": (2,),
        "transform.weight": square,
        "transform.bias": line,
        "transform.norm.weight": line,
        "transform.norm.bias": line,
    }


def megatron(row: Row) -> Iterator[Prediction]:
    """Bytes allocated after a step, and the most that were allocated in one."""
    gpu = estimate(megatron_job(row)).memory.gpu
    outside = sum(t.bytes for t in gpu.terms if t.kind == "runtime")
    name = f"{row['test']} {row['platform']}"
    for figure, key, ours in (
        ("steady", "mem_allocated_bytes", gpu.moments["step"]),
        ("peak", "mem_max_allocated_bytes", gpu.peak_bytes),
    ):
        if row.get(key):
            yield Prediction("Megatron-LM CI", name, figure, ours - outside, row[key])


# SimuMax's eight B200

SIMUMAX_LAYERS = {
    "llama3-70b": {"hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8},
    "llama3-405b": {"hidden": 16384, "ffn": 53248, "heads": 128, "kv_heads": 16},
}
"""Meta's dimensions, but for the 405B's key-value heads, of which SimuMax's model has 16."""
SIMUMAX_GPUS = 8


def simumax_jobs(row: Row) -> list[Job]:
    """A row of SimuMax's, on each pipeline stage: bf16, fp32 gradients, distributed optimizer,
    Transformer Engine, its fused cross-entropy.
    """
    degree = {key: int(value) for key, value in re.findall(r"(tp|cp|pp)(\d+)", row["parallel"])}
    tp, cp, pp = degree["tp"], degree.get("cp", 1), degree["pp"]
    given: Row = {
        "model": {
            "kind": "llama",
            "layers": row["layers"],
            "vocab": 128256,
            **SIMUMAX_LAYERS[row["model"]],
        },
        "cluster": {"gpus": SIMUMAX_GPUS, "gpu": "b200", "workspaces": True},
        "framework": "megatron",
        "implementation": "megatron-te",
        "loss": "parallel-in-place",
        "zero": {"stage": 1},
        "training": {
            "seq": row["seq"],
            "micro_batch": 1,
            "accumulation": row["mbc"],
            "attention": "flash",
        },
    }
    parallel = {"tp": tp, "cp": cp, "pp": pp, "sequence_parallel": tp > 1}
    return [
        Job.model_validate({**given, "parallel": {**parallel, "pipeline_stage": stage}})
        for stage in range(1, pp + 1)
    ]


def simumax(row: Row) -> Iterator[Prediction]:
    """The most that was allocated on any rank."""
    yield Prediction(
        "SimuMax B200",
        row["case"],
        "peak",
        max(peak(job) for job in simumax_jobs(row)),
        round(row["real_alloc_gib"] * GIB),
    )
