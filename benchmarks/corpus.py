"""Random jobs and their answers, kept in a file: what a change of the code must leave as it is.

python -m benchmarks.corpus write FILE [--jobs 5000] [--seed 1]
python -m benchmarks.corpus compare FILE [--names] [--show 5] [--match TEXT] [--limit N]

A file has one JSON object a line: the job's table, and what came of it: an ``answer`` (numbers and
names, no prose), ``refused`` (the error's text) or ``crashed`` (an error that nobody raised on
purpose). A line ``digest`` ends the file. The table is what ``Job.model_validate`` takes, but for
its model, which may name a preset, a file of tests/data/configs or a family's default config
(tests/data/family_defaults.json), with changes beside the name: see `resolved`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import IO, Any

import zerocalc as zc

ROOT = Path(__file__).resolve().parents[1]
PRESETS, DATA = ROOT / "presets", ROOT / "tests" / "data"
MOST_REFUSALS = 1500
MOST_TRIES = 500
DIGITS = 12
"""Of a float that are kept: sums may be taken in another order."""
TOLERANCE = 1e-9

Table = dict[str, Any]
"""A table as JSON has it; while a job is drawn its keys are whole paths: ``zero.stage``."""


# --- The library: all that this file knows of it -----------------------------------------------


def plan_document(table: Table) -> Table:
    """What ``zerocalc plan --json`` prints of a job. The one place that imports the library."""
    job = zc.Job.model_validate({**table, "model": resolved(table["model"])})
    document: Table = json.loads(zc.to_json(zc.plan(job)))
    return document


def resolved(model: Table) -> Any:
    """A model's table, or a preset's name, from a table that may say whose model it changes."""
    changes = dict(model)
    preset, config, family = (changes.pop(key, None) for key in ("preset", "config", "default_of"))
    if preset is not None and not changes:
        return preset
    if preset is None and config is None and family is None:
        return changes
    source = preset or (_config_path(config) if config else _family_path(family))
    return {**loaded(str(source)), **changes}


@cache
def loaded(source: str) -> Table:
    """The table of a preset's or a config's model."""
    dump: Table = zc.load_model(source).model_dump(mode="json", exclude_none=True)
    return dump


def _config_path(name: str) -> Path:
    return DATA / "configs" / f"{name}.json"


@cache
def family_defaults() -> Table:
    """Default configs of the families that transformers has."""
    table: Table = json.loads((DATA / "family_defaults.json").read_text("utf-8"))["families"]
    return table


def _family_path(name: str) -> Path:
    """The path of a file with a family's default config."""
    path = _folder() / f"{name}.json"
    known = family_defaults()[name]
    config = {**known["config"], "architectures": [known["architecture"]]}
    config["model_type"] = config.get("model_type") or name
    path.write_text(json.dumps(config), "utf-8")
    return path


@cache
def _folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="corpus-")
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that go when the program ends."""


# --- What comes of a job -----------------------------------------------------------------------


def outcome(table: Table) -> Table:
    """The answer to a job, or its refusal, or what went wrong."""
    try:
        return {"answer": normalised(plan_document(table))}
    except ValueError as error:
        return {"refused": refusal(error)}
    except Exception as error:
        return {"crashed": f"{type(error).__name__}: {error}"}


def refusal(error: ValueError) -> str:
    """The text of a refusal; of pydantic's the place and the words, without its version."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


TERM = ("name", "kind", "tier", "bytes", "moments")
COLLECTIVE = (
    *("moment", "op", "what", "dtype", "tensor_bytes", "count", "group", "ranks", "fabric"),
    *("sent_bytes", "overlapped", "spacing"),
)
PLACEMENT = ("members", "intra_node_bytes", "inter_node_bytes", "hierarchical_bytes")
PART, FIGURE = ("name", "seconds"), ("name", "value")


def normalised(document: Table) -> Table:
    """The numbers and names of a plan."""
    recommended = document["recommended"]
    answer = {
        "verdict": document["verdict"],
        "recommended": recommended and recommended["name"],
        "candidates": [_candidate(candidate) for candidate in document["candidates"]],
    }
    rounded: Table = _rounded(answer)
    return rounded


def _candidate(candidate: Table) -> Table:
    memory = {tier: _with_rows(part, terms=TERM) for tier, part in candidate["memory"].items()}
    return {
        **candidate,
        "memory": memory,
        "communication": _with_rows(
            candidate["communication"], collectives=COLLECTIVE, placements=PLACEMENT
        ),
        "time": _with_rows(candidate["time"], parts=PART, figures=FIGURE),
    }


def _with_rows(part: Table | None, **columns: tuple[str, ...]) -> Table | None:
    """A part of the answer with some of its lists of objects as rows of some columns."""
    if part is None:
        return None
    rows = {
        name: [[entry.get(key) for key in keys] for entry in part[name]]
        for name, keys in columns.items()
    }
    return {**part, **rows}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


# --- Drawing models ----------------------------------------------------------------------------

MOE_PRESETS = (
    *("dbrx", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"),
    *("jamba-v0.1", "mixtral-8x7b", "mixtral-8x22b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"),
    *("qwen3-235b-a22b", "llama-4-scout"),
)
MOE_FAMILIES = (
    *("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "olmoe", "phimoe", "granitemoe"),
    *("glm4_moe", "ernie4_5_moe", "llama4_text", "minimax", "jamba", "qwen3_next", "gpt_oss"),
    *("kimi_linear", "qwen2_moe", "afmoe", "hy_v3", "nemotron_h"),
)
MODEL_KINDS = {
    "bare": 12,
    "gpt2": 14,
    "llama": 18,
    "preset": 22,
    "config": 10,
    "family": 14,
    "moe": 10,
}
"""How often each kind of model is drawn; ``moe``: a preset's or a family's with experts."""
OWN = ("bare", "gpt2", "llama")
"""Kinds whose numbers are drawn too."""
NEEDS_LAYERS = ("model.lora", "model.quantised", "parallel.pipeline_stage")
NEEDS_EXPERTS = ("parallel.ep", "parallel.etp")


@cache
def names(kind: str) -> tuple[str, ...]:
    """The presets of a kind."""
    return tuple(sorted(path.stem for path in (PRESETS / kind).glob("*.toml")))


@cache
def configs() -> tuple[str, ...]:
    """The stored config.json files."""
    return tuple(sorted(path.stem for path in (DATA / "configs").glob("*.json")))


def model_kind(rng: Random, chosen: Iterable[str]) -> str:
    """Which kind of model to draw beside some options."""
    if any(option in chosen for option in NEEDS_EXPERTS) and rng.random() < 0.97:
        return "moe"
    kinds = dict(MODEL_KINDS)
    if any(option in chosen for option in NEEDS_LAYERS) and rng.random() < 0.97:
        del kinds["bare"]
    if "model.trainable" in chosen:
        kinds = {kind: kinds[kind] for kind in OWN if kind in kinds}
    return rng.choices(list(kinds), list(kinds.values()))[0]


def draw_model(rng: Random, kind: str) -> Table:
    """A model of a kind; keys are paths."""
    if kind == "bare":
        return _bare(rng)
    if kind in OWN:
        return _dimensions(rng, kind)
    field, known = {
        "preset": ("preset", names("models")),
        "config": ("config", configs()),
        "family": ("default_of", tuple(sorted(family_defaults()))),
        "moe": rng.choice((("preset", MOE_PRESETS), ("default_of", MOE_FAMILIES))),
    }[kind]
    return {f"model.{field}": rng.choice(known)}


def _bare(rng: Random) -> Table:
    params = rng.choice((rng.randint(1, 5000), int(10 ** rng.uniform(5, 12.5)), 7_500_000_000))
    model: Table = {"model.params": params}
    if rng.random() < 0.6:
        model["model.blocks"] = rng.randint(1, min(params, 120))
    return model


SWITCHES = ("tied_embeddings", "qkv_bias", "out_bias", "mlp_bias", "qk_norm")
ACTIVATIONS = ("gelu", "gelu_new", "gelu_tanh", "silu", "relu", "relu2", "quick_gelu", "xielu")


def _dimensions(rng: Random, kind: str) -> Table:
    large = rng.random() < 0.4
    kv_heads = rng.choice((8, 16, 32) if large else (1, 2, 4, 8))
    heads = kv_heads * rng.choice((1, 1, 2, 3, 4))
    head_dim = rng.choice((64, 128) if large else (8, 16, 64, 80))
    model: Table = {
        "kind": kind,
        "layers": rng.randint(16, 96) if large else rng.randint(1, 24),
        "hidden": heads * head_dim,
        "heads": heads,
    }
    extras: dict[str, Callable[[], Any]] = {
        "kv_heads": lambda: kv_heads,
        "head_dim": lambda: rng.choice((8, 64, 128)),
        "ffn": lambda: 8 * rng.randint(1, 4096 if large else 512),
        "vocab": lambda: rng.choice((rng.randint(1, 60_000), 32_000, 128_256)),
        "activation": lambda: rng.choice(ACTIVATIONS),
    }
    model |= {key: value() for key, value in extras.items() if rng.random() < 0.4}
    model |= {key: rng.random() < 0.5 for key in SWITCHES if rng.random() < 0.3}
    if kind == "gpt2" and rng.random() < 0.3:
        model["dropout"] = rng.choice((0.0, 0.1))
    if kind == "gpt2" and rng.random() < 0.2:
        model["positions"] = 8192
    return {f"model.{key}": value for key, value in model.items()}


# --- Drawing options ---------------------------------------------------------------------------

FSDP = ("fsdp1", "fsdp2", "torchtitan")
LORA_TARGETS: dict[str, tuple[Any, ...]] = {
    "gpt2": ("c_attn", ["c_attn", "c_proj"], ["c_attn", "c_fc"]),
    "llama": ("q_proj,v_proj", ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj"]),
    "": ("q_proj,v_proj", ["o_proj"], "query_key_value", "c_attn"),
}
"""Names of linear layers by the kind of decoder; of others what some of them have."""


def _no_needs(_rng: Random, _framework: str) -> Table:
    return {}


@dataclass(frozen=True)
class Option:
    """How the value of an option is drawn, what it needs to mean something, and how often."""

    value: Callable[[Random, Table], Any]
    needs: Callable[[Random, str], Table] = field(default=_no_needs)
    weight: float = 1.0


def one_of(*values: Any, weight: float = 1.0, **needs: Any) -> Option:
    """An option with some values; ``needs``: other options by their paths, ``__`` for a dot."""
    needed = {path.replace("__", "."): value for path, value in needs.items()}
    return Option(lambda rng, _: rng.choice(values), lambda _rng, _f: dict(needed), weight)


def below(most: float, zero: float = 0.1) -> Option:
    """A number of elements, spread evenly over its powers of ten; now and then none at all."""
    return Option(lambda rng, _: 0 if rng.random() < zero else int(10 ** rng.uniform(0, most)))


def shared_ranks(flat: Table) -> int:
    """The ranks that hold the same parameters."""
    degrees = int(flat.get("parallel.tp", 1)) * int(flat.get("parallel.pp", 1))
    return max(1, int(flat["cluster.gpus"]) // degrees)


def _divisor(rng: Random, flat: Table) -> int:
    ranks = shared_ranks(flat)
    return rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0][-6:])


def _group_needs(_rng: Random, framework: str) -> Table:
    return {"zero.stage": 3} if framework == "deepspeed" else {}


def _stages(rng: Random, flat: Table) -> Any:
    stages = stages_of(flat["framework"])
    if rng.random() < 0.7:
        return rng.choice(stages)
    return sorted(rng.sample(stages, rng.randint(1, len(stages))))


def _lora(rng: Random, flat: Table) -> Table:
    lora: Table = {"rank": rng.choice((1, 4, 8, 16, 64, 7))}
    if rng.random() < 0.6:
        named = LORA_TARGETS[flat.get("model.kind", "")]
        lora["targets"] = rng.choice(named) if rng.random() < 0.5 else "all-linear"
    if rng.random() < 0.4:
        lora["dtype"] = rng.choice(("bf16", "fp16", "fp32"))
    if rng.random() < 0.2:
        lora["dropout"] = 0.05
    return lora


def _interleave_needs(rng: Random, _: str) -> Table:
    pp = rng.choice((2, 2, 3, 4))
    return {"parallel.pp": pp, "training.accumulation": pp * rng.choice((1, 2))}


def _pipeline_needs(rng: Random, _: str) -> Table:
    return {"parallel.pp": rng.choice((2, 2, 3, 4, 8))}


def _experts_needs(rng: Random, _: str) -> Table:
    if rng.random() < 0.4:
        return {"parallel.tp": 2, "parallel.sequence_parallel": True}
    return {}


def _etp_needs(rng: Random, _: str) -> Table:
    return {"parallel.tp": rng.choice((2, 4)), "parallel.sequence_parallel": True}


def _device(rng: Random, flat: Table) -> str:
    framework = flat["framework"]
    return "nvme" if framework in ("deepspeed", "paper") and rng.random() < 0.4 else "cpu"


def _offload_needs(_rng: Random, framework: str) -> Table:
    if framework in FSDP:
        return {"zero.offload_optimizer": "cpu", "zero.offload_params": "cpu"}
    return {"cluster.nvme_capacity": "30TB"}


def _modules(rng: Random, _: Table) -> Any:
    modules = rng.sample(("core_attn", "mlp", "moe"), rng.randint(1, 3))
    return ",".join(modules) if rng.random() < 0.3 else modules


def _trainable(rng: Random, flat: Table) -> int:
    return int(rng.uniform(0.001, 1) * flat["model.params"]) + 1 if "model.params" in flat else 99


def _seq(rng: Random, flat: Table) -> int:
    lengths = (8, 64, 128, 333, 512, 512, 1000, 1024, 1024, 2048, 4096, 8192, 32768)
    tokens = rng.choice(lengths if "model.kind" in flat else lengths[:-1])
    return tokens if rng.random() < 0.8 else rng.randint(8, 2048)


def _gpus(rng: Random, flat: Table) -> int:
    degrees = math.prod(int(flat.get(f"parallel.{name}", 1)) for name in ("tp", "pp", "cp"))
    experts = int(flat.get("parallel.ep", 1))
    most = max(1, 4096 // degrees)
    if rng.random() < 0.03:
        return rng.randint(1, 4096)
    powers = [2**n for n in range(13) if 2**n <= most]
    many = rng.choice((powers, powers, range(1, 9), (3, 5, 7, 15, 24, 33, 99, 1000), (most,)))
    ranks = int(rng.choice(list(many)))
    while experts > 1 and ranks * degrees % experts:
        ranks *= 2
    return min(ranks, most) * degrees


BASE = ("training.seq", "training.micro_batch", "training.accumulation", "cluster.gpus")
"""Options that jobs have unless they are left out on purpose."""
RECOMPUTE = ("none", "selective", "full", "full", "operators")

OPTIONS: dict[str, Option] = {
    # Of the model.
    "model.lora": Option(_lora, weight=4),
    "model.quantised": Option(lambda rng, _: rng.choice(names("quantisations")), weight=2.5),
    "model.trainable": Option(_trainable, weight=1.5),
    # Degrees, and what follows from them.
    "parallel.tp": one_of(2, 2, 4, 8, 3, weight=5),
    "parallel.pp": one_of(2, 2, 3, 4, 8, weight=4),
    "parallel.cp": one_of(2, 2, 4, 3, weight=2.5),
    "parallel.ep": Option(lambda rng, _: rng.choice((2, 4, 8, 16)), _experts_needs, 3),
    "parallel.etp": Option(lambda rng, _: rng.choice((1, 1, 2)), _etp_needs, 1.5),
    "parallel.sequence_parallel": Option(
        lambda _rng, _: True, lambda rng, _: {"parallel.tp": rng.choice((2, 4))}, 2
    ),
    "parallel.interleave": Option(lambda rng, _: rng.choice((2, 2, 3)), _interleave_needs, 1.5),
    "parallel.first_stage_layers": Option(lambda rng, _: rng.randint(1, 12), _pipeline_needs, 1.5),
    "parallel.last_stage_layers": Option(lambda rng, _: rng.randint(1, 12), _pipeline_needs, 1.5),
    "parallel.pipeline_stage": Option(
        lambda rng, flat: rng.randint(1, flat["parallel.pp"]), _pipeline_needs, 1.5
    ),
    # How a batch is run.
    "training.seq": Option(_seq, weight=0),
    "training.micro_batch": one_of(1, 1, 2, 3, 4, 16, weight=0),
    "training.accumulation": one_of(1, 1, 2, 3, 4, 5, 8, weight=0),
    "training.recompute": one_of(*RECOMPUTE, weight=6),
    "training.recompute_every": Option(
        lambda rng, _: rng.randint(2, 5),
        lambda rng, _: {"training.recompute": rng.choice(("full", "operators"))},
        1.5,
    ),
    "training.recompute_modules": Option(
        _modules, lambda _rng, _: {"training.recompute": "selective"}, 2
    ),
    "training.reentrant": one_of(True, weight=1.5, training__recompute="full"),
    "training.attention": one_of("efficient", "math", "eager", "eager", weight=4),
    "training.kernel_efficiency": one_of(0.3, 0.62),
    "training.tokens": one_of("1T", 15_000_000_000),
    # The machine.
    "cluster.gpus": Option(_gpus, weight=0),
    "cluster.gpus_per_node": one_of(1, 2, 4, 16, 72),
    "cluster.gpu_memory": one_of("8GiB", "20GB", "14GB"),
    "cluster.workspaces": one_of(True),
    "cluster.cublas_workspace": one_of(0, 33_554_432, cluster__workspaces=True),
    "cluster.intra_node": one_of("450GB/s", "64GB/s"),
    "cluster.inter_node": one_of("3200Gbps", "100Gbps"),
    "cluster.cpu_memory": one_of("512GB", "2TB"),
    "cluster.cpu_bandwidth": one_of("400GB/s"),
    "cluster.nvme_capacity": one_of("30TB"),
    "cluster.nvme_bandwidth": one_of("25GB/s"),
    # Named descriptions.
    "recipe": Option(lambda rng, _: rng.choice(names("recipes")), weight=6),
    "implementation": Option(lambda rng, _: rng.choice(names("implementations")), weight=3),
    "loss": Option(lambda rng, _: rng.choice(names("losses")), weight=2.5),
    # ZeRO.
    "zero.stage": Option(_stages, weight=3),
    "zero.grad_sync": one_of("all-reduce"),
    "zero.defer_grad_sync": one_of(True),
    "zero.gather": one_of("broadcast"),
    "zero.reduce_dtype": one_of("fp32", "bf16", "fp16"),
    "zero.shard_group": Option(_divisor, _group_needs, 1.5),
    "zero.secondary_group": Option(_divisor, weight=1.5),
    "zero.reduce_to_owner": one_of(True, weight=1.5),
    "zero.grad_accum_dtype": one_of("fp32", weight=1.5),
    "zero.contiguous_gradients": one_of(False, weight=1.5),
    "zero.quantised_weights": one_of(True, weight=1.5),
    "zero.quantised_gradients": one_of(True, weight=3),
    "zero.max_live_parameters": below(10),
    "zero.max_reuse_distance": below(10),
    "zero.prefetch_bucket_size": below(9),
    "zero.persistence_threshold": below(7),
    "zero.sub_group_size": below(10, 0),
    "zero.buffers": one_of("fused"),
    "zero.reduce_bucket_size": below(10, 0),
    "zero.allgather_bucket_size": below(10, 0),
    "zero.overlap_comm": one_of(True, False),
    "zero.partition_activations": Option(
        lambda _rng, _: True,
        lambda rng, _: {"parallel.tp": rng.choice((2, 4)), "training.recompute": "full"},
        1.5,
    ),
    "zero.cpu_checkpointing": Option(
        lambda _rng, _: True,
        lambda rng, _: {
            "parallel.tp": rng.choice((2, 4)),
            "training.recompute": "full",
            "zero.partition_activations": True,
        },
    ),
    "zero.offload_optimizer": Option(_device, _offload_needs, 2),
    "zero.offload_params": Option(_device, _offload_needs, 1.5),
    "zero.offload_activations": one_of("cpu", weight=1.5, training__recompute="full"),
    "zero.defragment": one_of(False),
    "zero.fragmentation": one_of(0.1, 0.25, 0.99, zero__defragment=False),
}
"""Options in the order in which they are drawn: later ones look at earlier ones' values."""

ANY_FRAMEWORKS = (
    *("stage", "partition_activations", "cpu_checkpointing", "offload_optimizer"),
    *("offload_params", "defragment", "fragmentation"),
)
"""Options of ZeRO's that no framework lists."""
GO_ON = 0.76
"""The chance of each further option."""
ZERO_SHARE = 0.4
"""The chance that an option is one of ZeRO's, of which some frameworks have many."""


@cache
def framework(name: str) -> Table:
    """A framework's preset."""
    return tomllib.loads((PRESETS / "frameworks" / f"{name}.toml").read_text("utf-8"))


def stages_of(name: str) -> list[int]:
    """The stages that a framework has."""
    return [stage["stage"] for stage in framework(name)["stages"]]


@cache
def offered(name: str) -> dict[str, float]:
    """The options that mean something to a framework, and how often each is drawn."""
    listed = framework(name).get("options")
    known = None if listed is None else {*listed, *ANY_FRAMEWORKS}
    without: tuple[str, ...] = ()
    if not framework(name).get("experts_at"):
        without += NEEDS_EXPERTS
    if not any("offload" in stage for stage in framework(name)["stages"]):
        without += ("zero.offload_optimizer", "zero.offload_params")
    return {
        path: option.weight
        for path, option in OPTIONS.items()
        if (known is None or not path.startswith("zero.") or path.removeprefix("zero.") in known)
        and path not in without
    }


def choose(rng: Random, name: str) -> set[str]:
    """A few options; seldom some that the framework does not list."""
    weights = offered(name) if rng.random() < 0.97 else {p: o.weight for p, o in OPTIONS.items()}
    chosen = {path for path in BASE if path == "cluster.gpus" or rng.random() < 0.9}
    zeros = {path: weight for path, weight in weights.items() if path.startswith("zero.")}
    while rng.random() < GO_ON:
        among = zeros if rng.random() < ZERO_SHARE else weights
        chosen.add(rng.choices(list(among), list(among.values()))[0])
    if "parallel.cp" in chosen:
        chosen.add("training.seq")
    if "model.quantised" in chosen and rng.random() < 0.95:
        chosen.add("model.lora")
    if "model.lora" in chosen and rng.random() < 0.95:
        chosen.discard("model.trainable")
    return chosen


def draw(rng: Random, name: str) -> Table:
    """A job's table of a framework, which the library may refuse."""
    chosen = choose(rng, name)
    kind = model_kind(rng, chosen)
    flat: Table = {"framework": name, **draw_model(rng, kind), **draw_machine(rng)}
    for path, option in OPTIONS.items():
        flat |= option.needs(rng, name) if path in chosen else {}
    if kind in ("family", "moe") and rng.random() < 0.4:
        flat["training.attention"] = "eager"
    for path, option in OPTIONS.items():
        if path in chosen and path not in flat:
            flat[path] = option.value(rng, flat)
    return nested(flat)


def draw_machine(rng: Random) -> Table:
    """A kind of GPU or of node, or neither."""
    luck = rng.random()
    if luck < 0.28:
        return {"cluster.gpu": rng.choice(names("gpus"))}
    return {"cluster.node": rng.choice(names("nodes"))} if luck < 0.48 else {}


def nested(flat: Table) -> Table:
    """A table of tables from one of paths."""
    out: Table = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        inner = out
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return out


# --- Writing -----------------------------------------------------------------------------------


def drawn(jobs: int, seed: int) -> Iterator[tuple[Table, Table]]:
    """Tables and what came of them, until so many jobs are answered; frameworks in turn."""
    rng = Random(seed)
    for number in range(jobs):
        name = names("frameworks")[number % len(names("frameworks"))]
        for _ in range(MOST_TRIES):
            table = draw(rng, name)
            result = outcome(table)
            yield table, result
            if "answer" in result:
                break
        else:
            raise SystemExit(f"{name}: {MOST_TRIES} draws in a row were refused")


def write(file: str, jobs: int, seed: int) -> int:
    """Write a corpus, and say what is in it."""
    started, said = time.monotonic(), Counter[str]()
    options, digest = Counter[str](), hashlib.sha256()
    with opened(file, "w") as stream:
        for table, result in drawn(jobs, seed):
            (word,) = result
            said[word] += 1
            if word == "answer":
                options.update(marks(table))
                digest.update(canonical(result["answer"]).encode())
            elif word == "crashed":
                print(f"crashed: {result['crashed']}\n  {canonical(table)}")
            if word != "refused" or said[word] <= MOST_REFUSALS:
                stream.write(json.dumps({"job": table, **result}, separators=(",", ":")) + "\n")
        stream.write(json.dumps({"digest": digest.hexdigest()}) + "\n")
    for mark, count in sorted(options.items()):
        print(f"{count:6} {mark}")
    print(f"{said['answer']} jobs, {said['refused']} draws refused, {said['crashed']} crashed")
    print(f"sha256 {digest.hexdigest()}, {time.monotonic() - started:.0f} s")
    return 0


def opened(file: str, mode: str) -> IO[str]:
    """A text file, compressed where its name says so."""
    if file.endswith(".gz"):
        return gzip.open(file, "wt" if mode == "w" else "rt", encoding="utf-8", compresslevel=6)
    return Path(file).open(mode, encoding="utf-8")


def canonical(value: Any) -> str:
    """JSON in one spelling."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


WORDY = ("model.preset", "model.config", "model.default_of", "cluster.gpu", "cluster.node")
"""Options of which only that they were drawn is counted, not how often each value was."""


def marks(table: Table, parent: str = "") -> Iterator[str]:
    """What is counted of a job: its kind of model, each option, and values that are words."""
    if not parent:
        yield f"model kind: {kind_of(table['model'])}"
    for key, value in table.items():
        path = f"{parent}{key}"
        yield path
        if isinstance(value, dict):
            yield from marks(value, f"{path}.")
        elif isinstance(value, (str, bool)) and path not in WORDY:
            yield f"{path} = {value}"
        elif isinstance(value, list):
            yield from (f"{path} has {item}" for item in value)


def kind_of(model: Table) -> str:
    """The kind of a job's model, in words."""
    found = next(
        key for key in ("params", "kind", "preset", "config", "default_of") if key in model
    )
    moe = model.get("preset") in MOE_PRESETS or model.get("default_of") in MOE_FAMILIES
    return f"{model[found] if found == 'kind' else found}{', experts' if moe else ''}"


# --- Comparing ---------------------------------------------------------------------------------

Fact = tuple[str, str]
"""A stage (or nothing, of the whole plan) and what it is that is said of it."""


@dataclass
class Difference:
    """What differs of a job at one stage, in one field."""

    line: int
    job: Table
    group: tuple[str, str, str]
    old: Any
    new: Any


def facts(answer: Table, by_name: bool) -> dict[Fact, Any]:
    """An answer as a flat table. Names of entries count only where they are asked for."""
    out: dict[Fact, Any] = {("", key): answer[key] for key in ("verdict", "recommended")}
    for candidate in answer["candidates"]:
        said = {"name": candidate["name"], "fits": candidate["fits"]}
        said["pipeline stage"] = candidate["pipeline_stage"]
        for tier, part in candidate["memory"].items():
            said |= _scalars(tier, part, by_name)
            said |= _grouped("term kind ", (part or {}).get("terms", ()), (1, 2), 0, by_name)
        traffic = candidate["communication"]
        said |= _scalars("traffic", traffic, by_name)
        said |= _grouped("collectives ", traffic["collectives"], (0, 6), 2, by_name)
        said["placements"] = _sorted(traffic["placements"])
        said |= _scalars("time", candidate["time"], by_name)
        for key in ("parts", "figures"):
            rows = (candidate["time"] or {}).get(key, ())
            said[f"time {key}"] = _sorted([row if by_name else row[1:] for row in rows])
        out |= {(str(candidate["stage"]), key): value for key, value in said.items()}
    return out


ROWS = ("terms", "collectives", "placements", "parts", "figures")


def _scalars(prefix: str, part: Table | None, by_name: bool) -> Table:
    """What is no list of rows; texts on what is unknown, without names, as how many they are."""
    out: Table = {prefix: part is not None}
    for key, value in (part or {}).items():
        if key == "moments":
            out |= {f"moment {moment}": size for moment, size in value.items()}
        elif key == "unknown":
            out[f"{prefix} unknown"] = value if by_name else len(value)
        elif key == "largest_at_peak":
            out |= {f"{prefix} {key}": value} if by_name else {}
        elif key not in ROWS:
            out[f"{prefix} {key}"] = value
    return out


def _grouped(
    prefix: str, rows: Iterable[list[Any]], by: tuple[int, ...], name: int, by_name: bool
) -> Table:
    """Multisets of rows by some of their columns, without the one that is a name."""
    out: dict[str, list[Any]] = {}
    for row in rows:
        group = prefix + " ".join(str(row[column]) for column in by)
        kept = row if by_name else [*row[:name], *row[name + 1 :]]
        out.setdefault(group, []).append(kept)
    return {group: _sorted(kept) for group, kept in out.items()}


def _sorted(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=canonical)


def same(old: Any, new: Any) -> bool:
    """Whether two values are alike; fractions need not be to the last digit."""
    if isinstance(old, float) or isinstance(new, float):
        numbers = all(isinstance(v, (int, float)) for v in (old, new))
        return numbers and math.isclose(old, new, rel_tol=TOLERANCE)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    return bool(old == new)


def differences(line: int, stored: Table, by_name: bool) -> Iterator[Difference]:
    """What differs between a stored outcome and the one of the code at hand."""
    job = stored["job"]
    now = outcome(job)
    (was,), (word,) = (key for key in stored if key != "job"), now
    label = job["framework"]
    if was != word:
        words = {"answer": "accepted now", "refused": "refused now", "crashed": "crashed now"}
        old, new = (None if k == "answer" else v[k] for k, v in ((was, stored), (word, now)))
        yield Difference(line, job, (label, "", words[word]), old, new)
    elif was == "answer":
        before, after = facts(stored["answer"], by_name), facts(now["answer"], by_name)
        for fact in dict.fromkeys((*before, *after)):
            old, new = before.get(fact), after.get(fact)
            if not same(old, new):
                yield Difference(line, job, (label, *fact), old, new)
    elif by_name and stored[was] != now[was]:
        yield Difference(line, job, (label, "", f"{was}: text"), stored[was], now[was])


def compare(file: str, by_name: bool, show: int, match: str, limit: int | None) -> int:
    """Compare a corpus with what the code at hand answers."""
    started, equal, differ = time.monotonic(), 0, 0
    found: list[Difference] = []
    with opened(file, "r") as stream:
        for line, text in enumerate(stream, 1):
            stored = json.loads(text)
            if "job" not in stored or match not in json.dumps(stored["job"]):
                continue
            if equal + differ == limit:
                break
            here = list(differences(line, stored, by_name))
            found += here
            equal, differ = (equal, differ + 1) if here else (equal + 1, differ)
    report(found, show)
    print(f"{equal} equal, {differ} differ, {time.monotonic() - started:.0f} s")
    return 1 if found else 0


def report(found: list[Difference], show: int) -> None:
    """Print how often each field differs, and one example each of the most frequent ones."""
    counts = Counter(difference.group for difference in found)
    for (name, stage, what), count in counts.most_common():
        print(f"{count:6} {name:11} {f'stage {stage}' if stage else '':8} {what}")
    shown: set[int] = set()
    for group, _ in counts.most_common():
        new = (d for d in found if d.group == group and d.line not in shown)
        example = next(new, None) if len(shown) < show else None
        if example is not None:
            shown.add(example.line)
            show_example(example)


def show_example(example: Difference) -> None:
    """Print a job, and what one field of its answer was and is."""
    name, stage, what = example.group
    print(f"\nline {example.line}: {name}{f' stage {stage}' if stage else ''}: {what}")
    print(f"  job {canonical(example.job)[:700]}")
    old, new = example.old, example.new
    if isinstance(old, list) and isinstance(new, list):
        texts = [Counter(map(canonical, rows)) for rows in (old, new)]
        old, new = list((texts[0] - texts[1]).elements()), list((texts[1] - texts[0]).elements())
    print(f"  old {str(old)[:400]}\n  new {str(new)[:400]}")


# --- Commands ----------------------------------------------------------------------------------


def arguments(given: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.corpus", description="Random jobs and their answers."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="draw jobs and keep their answers")
    writing.add_argument("file")
    writing.add_argument("--jobs", type=int, default=5000)
    writing.add_argument("--seed", type=int, default=1)
    comparing = commands.add_parser("compare", help="compare kept answers with those of this code")
    comparing.add_argument("file")
    comparing.add_argument("--names", action="store_true", help="names of terms count too")
    comparing.add_argument("--show", type=int, default=5, help="how many examples to print")
    comparing.add_argument("--match", default="", help="only jobs whose table contains this text")
    comparing.add_argument("--limit", type=int, help="only so many jobs")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Run a command."""
    args = arguments(given)
    if args.command == "write":
        return write(args.file, args.jobs, args.seed)
    return compare(args.file, args.names, args.show, args.match, args.limit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
