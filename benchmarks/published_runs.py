"""Published peaks of runs that state their settings, as jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from megatron_runs import megatron_job, simumax_jobs
from run_rows import GIB, Prediction, Row, UnstatedError, peak, rows

from zerocalc import presets
from zerocalc.spec.job import Job

UNITS = {"GiB": GIB, "GB": 10**9, "MiB": 1 << 20, "MB (MiB)": 1 << 20, "bytes": 1}


def degrees(text: str) -> dict[str, int]:
    """Degrees as rows write them: ``FSDP8 TP8 PP8``, ``TP4 PP4 VPP5 DP2``."""
    return {
        name.lower(): int(value)
        for name, value in re.findall(r"(FSDP|VPP|TP|PP|CP|DP|EP)(\d+)", text)
    }


TITAN_MODELS = {
    "Llama3.1-8B": "llama-3.1-8b",
    "Llama3-8B": "llama-3-8b",
    "Llama3.1-70B": "llama-3.1-70b",
    "Llama3.1-405B": "llama-3.1-405b",
}


LOOPED_CHUNKS = 2
"""Stages on a rank where nothing else is said and the schedule is interleaved (torchtitan 95677cb,
parallelisms/pipelining_utils.py).
"""


def torchtitan(row: Row) -> list[Job]:
    """FSDP2 with fp32 shards, as many micro-batches as stages on all ranks (the default), of which
    the last one alone reduces.

    Blocks that are compiled, and products in 8 bits, keep what eager bf16 ones keep (torchao saves
    16-bit inputs).
    """
    degree = degrees(row["parallel"])
    tp, pp, cp, shards = (
        degree.get("tp", 1),
        degree.get("pp", 1),
        degree.get("cp", 1),
        degree["fsdp"],
    )
    chunks = LOOPED_CHUNKS if "interleaved" in row.get("other", "") else 1
    stages_of_all = pp * chunks
    training = {
        "seq": row["seq"],
        "micro_batch": int(row["micro_batch"]) // stages_of_all,
        "accumulation": stages_of_all,
        "recompute": "operators" if row["recompute"].startswith("selective") else row["recompute"],
    }
    if shards * tp * pp * cp != row["gpus"]:
        raise UnstatedError("degrees that are not the GPUs'")
    given: Row = {
        "model": TITAN_MODELS[row["model"]],
        "cluster": {"gpus": row["gpus"], "gpu": "h100-96g"},
        "framework": "torchtitan",
        "zero": {"stage": 2 if pp > 1 else 3, "defragment": False},
        "training": training,
    }
    parallel: Row = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "interleave": chunks,
        "sequence_parallel": tp > 1,
    }
    stages = range(1, pp + 1) if pp > 1 else (None,)
    return [
        Job.model_validate({**given, "parallel": {**parallel, "pipeline_stage": stage}})
        for stage in stages
    ]


TORCHTUNE_LATER = {
    "baseline": "sequences that are not packed, of lengths that are not stated",
    "optimizer in bwd": "an optimizer that steps in backward",
    "act offload": "activations on the host",
    "QLoRA": "an adapters' rank that is not stated",
}


def torchtune(row: Row) -> list[Job]:
    """Full fine-tuning in bf16 throughout on one GPU. The README adds a loss of eight chunks after
    compiling, before checkpointing; keys and values are repeated for every head (torchtune,
    modules/attention.py).
    """
    for word, reason in TORCHTUNE_LATER.items():
        if word in row["id"]:
            raise UnstatedError(reason)
    training = {
        "seq": row["seq"],
        "micro_batch": row["micro_batch"],
        "recompute": "full" if row["recompute"] == "on" else "none",
        "attention": "efficient",
    }
    given = {
        "model": "llama-3.2-3b",
        "cluster": {"gpus": 1, "gpu": "a100-80g"},
        "recipe": "pure-bf16-adam",
        "implementation": "huggingface",
        "loss": "fp32" if row["id"].endswith(("packed 4096", "compile")) else "chunked",
        "zero": {"stage": 0},
        "training": training,
    }
    return [Job.model_validate(given)]


FSDP_QLORA = {
    "rank": 64,
    "dropout": 0.1,
    "dtype": "bf16",
    "targets": ["q_proj", "k_proj", "v_proj", "up_proj", "down_proj", "gate_proj"],
}
"""Defaults of AnswerDotAI/fsdp_qlora's train.py."""


def fsdp_qlora(row: Row) -> list[Job]:
    """Adapters on Llama 2 7B, two GPUs, checkpointing; the base in nf4 or bf16, sharded or (DDP)
    FSDP's NO_SHARD.
    """
    how = row["sharding"]
    if "offload" in how:
        raise UnstatedError("parameters on the host")
    model: Row = {"base": "llama-2-7b", "lora": FSDP_QLORA}
    if "QLoRA" in how:
        model["quantised"] = "nf4"
    training = {"seq": row["seq"], "micro_batch": row["micro_batch"], "recompute": "full"}
    given = {
        "model": from_preset(model),
        "cluster": {"gpus": row["gpus"], "gpu": "rtx-3090"},
        "recipe": "pure-bf16-adam",
        "framework": "fsdp1",
        "implementation": "huggingface",
        "loss": "fp32-logits-returned",
        "zero": {"stage": 0 if "DDP" in how else 3, "defragment": False},
        "training": training,
    }
    return [Job.model_validate(given)]


def from_preset(model: Row) -> Row:
    """A preset's dimensions with what is laid over them."""
    base = presets.load("models", model.pop("base"))
    return {**base, **model}


MEGATRON_7B: Row = {
    "family": "gpt",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "gqa_groups": 8,
    "vocab": 131073,
    "tokenizer": "NullTokenizer",
    "untied": True,
    "cp": 1,
    "dist_opt": True,
    "no_grad_fusion": True,
    "impl": "transformer_engine",
    "nodes": 1,
    "gpus_per_node": 8,
    "gbs": 8,
}
"""What the rows of Megatron-LM's 7B say in words; its tests are among the continuous integration's.
"""


def megatron_7b(row: Row) -> list[Job]:
    """Megatron-LM's gpt3_7b tests, their last rank."""
    degree = degrees(row["parallel"])
    platform = f"dev_dgx_{row['gpu'].lower()}"
    tp, pp = degree.get("tp", 1), degree.get("pp", 1)
    more: Row = {
        "test": row["id"],
        "platform": platform,
        "seq": row["seq"],
        "mbs": row["micro_batch"],
        "tp": tp,
        "pp": pp,
    }
    if "VP(1 layer)" in row["parallel"]:
        more["layers_per_vp"] = 1
    return [megatron_job({**MEGATRON_7B, **more})]


def simumax_row(row: Row) -> list[Job]:
    """SimuMax's figures again: ``sx-llama3-70b-TP2 CP4-32768``."""
    model = "llama3-405b" if "405b" in row["model"] else "llama3-70b"
    layers = int(re.findall(r"(\d+) layers", row["model"])[0])
    degree = degrees(row["parallel"])
    parallel = f"tp{degree.get('tp', 1)}cp{degree.get('cp', 1)}pp{degree.get('pp', 1)}"
    return simumax_jobs(
        {"model": model, "layers": layers, "parallel": parallel, "mbc": 4, "seq": row["seq"]}
    )


def bridge(row: Row) -> list[Job]:
    """Megatron-Bridge's fine-tuning of Llama 3 70B: every stage, of which the fullest is meant.
    Weights and activations as in bf16.
    """
    if "70B" not in row["model"]:
        raise UnstatedError(
            "experts over ranks of their own, a GPU count and a length that are not stated"
        )
    degree = degrees(row["parallel"])
    tp, pp = degree["tp"], degree["pp"]
    dp = row["gpus"] // (tp * pp)
    gbs = int(re.findall(r"GBS (\d+)", row["other"])[0])
    training = {
        "seq": row["seq"],
        "micro_batch": row["micro_batch"],
        "accumulation": gbs // dp,
        "recompute": "selective",
        "recompute_modules": ["mlp"] if "mlp recompute" in row["other"] else ["core_attn"],
    }
    given: Row = {
        "model": "llama-3-70b",
        "cluster": {"gpus": row["gpus"], "gpu": "h100-80g", "workspaces": True},
        "framework": "megatron",
        "implementation": "megatron-te",
        "zero": {"stage": 1},
        "training": training,
    }
    parallel = {"tp": tp, "pp": pp, "interleave": degree.get("vpp", 1), "sequence_parallel": True}
    return [
        Job.model_validate({**given, "parallel": {**parallel, "pipeline_stage": stage}})
        for stage in range(1, pp + 1)
    ]


def unstated(reason: str) -> Callable[[Row], list[Job]]:
    """A row that is left out."""

    def refuse(row: Row) -> list[Job]:
        raise UnstatedError(reason)

    return refuse


BUILDERS: tuple[tuple[str, str, Callable[[Row], list[Job]]], ...] = (
    ("tt-", "torchtitan", torchtitan),
    ("tune-", "torchtune", torchtune),
    ("q-", "fsdp_qlora", fsdp_qlora),
    ("mlm-", "Megatron-LM 7B", megatron_7b),
    ("sx-", "SimuMax", simumax_row),
    ("mb-", "Megatron-Bridge", bridge),
    ("hf-bert", "transformers' documentation", unstated("what BERT's layers keep")),
    ("ds-muon", "DeepSpeed", unstated("a length of sequences that is not stated")),
    ("ds-4527", "DeepSpeed", unstated("states on the host")),
)
"""What an id begins with, how its source is called, and what makes a job of it."""


def unchanged(job: Job) -> Job:
    """The job as it is."""
    return job


def published(row: Row, change: Callable[[Job], Job] = unchanged) -> Iterator[Prediction]:
    """One published peak, of its jobs with ``change``."""
    for start, title, build in BUILDERS:
        if row["id"].startswith(start):
            ours = max(peak(change(job), meter(row)) for job in build(row))
            measured = round(row["value"] * UNITS[row["unit"]])
            yield Prediction(f"published: {title}", row["id"], "peak", ours, measured)
            return
    raise UnstatedError("nobody has written what its id stands for")


def meter(row: Row) -> str:
    """What a row's figure was read from."""
    if "reserved" in row["metric"]:
        return "reserved"
    return "device" if "nv" in row["metric"] else "allocated"


def reserved(change: Callable[[Job], Job]) -> Iterator[Prediction]:
    """All published peaks of reserved memory that can be predicted, of jobs with ``change``."""
    for row in rows("published"):
        if meter(row) == "reserved":
            try:
                yield from published(row, change)
            except UnstatedError:
                continue
