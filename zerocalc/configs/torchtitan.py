"""torchtitan's TOML: what each of its keys means to a job.

Read against torchtitan 0.2.2: config/job_config.py, whose defaults hold where a file says nothing,
distributed/ and models/*/infra/parallelize.py.
"""

from __future__ import annotations

from typing import Any

from zerocalc.configs.reader import Known, Section, Settings, product
from zerocalc.configs.recipes import (
    DTYPES,
    UNDER_AUTOCAST,
    WITH_FP32_WEIGHTS,
    WITHOUT_MASTER_WEIGHTS,
    recipe_table,
)
from zerocalc.quantities import shown

FRAMEWORK, DDP = "torchtitan", "torch-ddp"
MARKS = frozenset({"parallelism", "activation_checkpoint", "lr_scheduler", "metrics", "profiling"})
"""Keys by which a configuration is known as torchtitan's."""

PRESETS = {
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
}
"""Models by name and flavor (models/*/__init__.py)."""
SAYS_A_MODEL = ("model", "model.params", "model.layers", "model.hidden", "model.heads")

LOCAL_BATCH, SEQ_LEN, OPTION = 8, 2048, "2"
"""torchtitan's defaults: sequences of a local batch, their length, one layer in so many recomputed.
"""
RESHARD = {"default": "default", "always": "always", "never": "never"}
SCHEDULES = {"1f1b": "1", "interleaved1f1b": "2"}
"""Pipeline schedules, and the chunks of layers on each stage unless
``pipeline_parallel_layers_per_stage`` says otherwise.
"""
MODES = {"none": "none", "full": "full", "selective": "selective"}

OLD_SPELLINGS = {
    "training": {
        "batch_size": "training.local_batch_size",
        "data_parallel_degree": "parallelism.data_parallel_shard_degree",
        **{
            key: f"parallelism.{key}"
            for key in (
                "data_parallel_shard_degree",
                "data_parallel_replicate_degree",
                "tensor_parallel_degree",
            )
        },
    },
    "experimental": {
        key: f"parallelism.{key}"
        for key in (
            "context_parallel_degree",
            "pipeline_parallel_degree",
            "pipeline_parallel_schedule",
        )
    },
}
"""Keys of torchtitan before 0.1 and where they stand today: passed over, they would leave another
job.
"""
FREE_TABLES = (
    "job",
    "profiling",
    "metrics",
    "lr_scheduler",
    "checkpoint",
    "comm",
    "fault_tolerance",
    "validation",
    "debug",
    "memory_estimation",
    "quantize",
)
"""Tables that cost neither memory nor traffic of a training step; what is quantised,
model.converters says.
"""
FREE = {
    "model": ("hf_assets_path", "tokenizer_path", "print_after_conversion"),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "training": (
        "dataset",
        "dataset_path",
        "max_norm",
        "steps",
        "gc_freq",
        "gc_debug",
        "dataloader",
        "seed",
        "deterministic",
        "warmup_steps",
    ),
    "parallelism": (
        "context_parallel_rotate_method",
        "context_parallel_load_balancer",
        "pipeline_parallel_expert_parallel_overlap",
        "expert_tensor_parallel_degree",
        "expert_parallel_comm_backend",
    ),
    "activation_checkpoint": (
        "per_op_sac_force_recompute_mm_shapes_by_fqns",
        "early_stop",
        "visualize_memory_budget_pareto",
        "preserve_rng_state",
        "determinism_check",
        "debug",
        "memory_budget",
    ),
}
"""What costs neither memory nor traffic of a training step."""


def read(table: dict[str, Any], known: Known, settings: Settings) -> None:
    """Read a configuration into ``settings``. Raises `FieldError` with the key for a path."""
    root = Section(table, settings)
    for name, keys in OLD_SPELLINGS.items():
        old = (
            Section(root.table[name], settings, name)
            if isinstance(root.table.get(name), dict)
            else None
        )
        for key, today in keys.items():
            if old is not None and old.table.get(key) not in (None, 1):
                raise old.wrong(key, f"is an old spelling; torchtitan calls it {today} today")
    _model(root, known, settings)
    _parallelism(root.section("parallelism"), known, settings)
    _training(
        root.section("training"), root.section("parallelism"), known.over(settings.items), settings
    )
    _checkpointing(root.section("activation_checkpoint"), settings)
    _recipe(root, known, settings)
    if root.section("compile").flag("enable"):
        settings.not_modelled.append("compile")
    root.free(*FREE_TABLES)
    root.done()


def _model(root: Section, known: Known, settings: Settings) -> None:
    part = root.section("model")
    name, flavor = part.value("name") or "llama3", part.value("flavor")
    if part.value("converters"):
        settings.not_modelled.append(f"{part.key('converters')} {shown(part.value('converters'))}")
    part.free(*FREE["model"])
    part.done()
    if any(path in known.given for path in SAYS_A_MODEL):
        return
    preset = (
        PRESETS.get((name, flavor)) if isinstance(name, str) and isinstance(flavor, str) else None
    )
    if preset is not None:
        settings.put("model", preset, part.key("flavor"))
    elif known.value("model") is None:
        raise part.wrong(
            "flavor",
            f"no preset is known for {shown(flavor)} of {shown(name)}; --model says what it is",
        )


def _parallelism(part: Section, known: Known, settings: Settings) -> None:
    """Degrees, the stage, and the GPUs that the degrees come to."""
    names = {
        "tp": "tensor_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "cp": "context_parallel_degree",
    }
    degrees = {field: part.whole(key, least=1) or 1 for field, key in names.items()}
    for field, key in names.items():
        settings.put(f"parallel.{field}", degrees[field], part.key(key))
    settings.put("parallel.sequence_parallel", degrees["tp"] > 1, part.key(names["tp"]))
    experts = part.whole("expert_parallel_degree", least=1) or 1
    if experts > 1:
        settings.put("parallel.ep", experts, part.key("expert_parallel_degree"))
        settings.put(
            "parallel.etp",
            part.whole("expert_tensor_parallel_degree", least=1) or 1,
            part.key("expert_tensor_parallel_degree"),
        )
    copies, shards = (
        part.whole("data_parallel_replicate_degree", least=1) or 1,
        part.whole("data_parallel_shard_degree", least=-1),
    )
    inner, key = known.over(settings.items), part.key("data_parallel_shard_degree")
    if shards in (None, -1, 0):
        gpus = inner.whole("cluster.gpus")
        shards = max(1, gpus // (copies * inner.model_parallel)) if gpus else None
    else:
        gpus = copies * (shards or 1) * inner.model_parallel
        if known.whole("cluster.gpus") is None or "cluster.gpus" not in known.given:
            settings.put("cluster.gpus", gpus, key)
        elif known.whole("cluster.gpus") != gpus:
            raise part.wrong(
                "data_parallel_shard_degree",
                f"{shards}, with the other degrees, makes {gpus} GPUs, not "
                f"{known.whole('cluster.gpus')}",
            )
    _sharding(part, copies, shards, degrees, settings)
    _pipeline(part, inner, degrees["pp"], settings)
    for name in (
        "enable_async_tensor_parallel",
        "disable_loss_parallel",
        "module_fqns_per_model_part",
    ):
        part.note(name)
    part.free(*FREE["parallelism"])
    part.done()


def _sharding(
    part: Section, copies: int, shards: int | None, degrees: dict[str, int], settings: Settings
) -> None:
    """The framework and the stage: shards are those of FSDP2; copies without shards are DDP's."""
    policy = part.word("fsdp_reshard_after_forward", RESHARD, default="default")
    if copies > 1 and (shards or 0) * degrees["cp"] == 1:
        if degrees["tp"] * degrees["pp"] > 1:
            raise part.wrong(
                "data_parallel_replicate_degree",
                "copies without shards (DDP) go with no other parallelism",
            )
        key = part.key("data_parallel_replicate_degree")
        settings.put("framework", DDP, key)
        settings.put("implementation", FRAMEWORK, key)
        settings.put("zero.stage", 0, key)
        return
    settings.put("framework", FRAMEWORK, "parallelism")
    never = policy == "never" or (policy == "default" and degrees["pp"] > 1)
    settings.put("zero.stage", 2 if never else 3, part.key("fsdp_reshard_after_forward"))
    if policy == "always" and degrees["pp"] == 1:
        settings.notes.append(
            f"{part.key('fsdp_reshard_after_forward')} always: counted as default, which "
            "keeps norm and head gathered"
        )
    if copies > 1 and shards is not None:
        settings.put(
            "zero.shard_group", shards * degrees["cp"], part.key("data_parallel_replicate_degree")
        )


def _pipeline(part: Section, known: Known, pp: int, settings: Settings) -> None:
    schedule = part.value("pipeline_parallel_schedule")
    per_stage, csv = (
        part.whole("pipeline_parallel_layers_per_stage", least=1),
        part.value("pipeline_parallel_schedule_csv"),
    )
    ends = {
        key: part.whole(key)
        for key in (
            "pipeline_parallel_first_stage_less_layers",
            "pipeline_parallel_last_stage_less_layers",
        )
    }
    part.free("pipeline_parallel_microbatch_size", *ends)
    if pp == 1:
        return
    for key, less in ends.items():
        if less not in (None, 1):
            raise part.wrong(
                key,
                f"{less}: embedding and head are counted as a layer each when layers are dealt (1)",
            )
    chunks = (
        SCHEDULES.get(schedule.lower())
        if isinstance(schedule, str)
        else "1"
        if schedule is None
        else None
    )
    if chunks is None or csv:
        key = "pipeline_parallel_schedule_csv" if csv else "pipeline_parallel_schedule"
        raise part.wrong(
            key, f"{shown(csv or schedule)} is not modelled; 1F1B and Interleaved1F1B are"
        )
    layers = known.whole("model.layers")
    if chunks == "2" and per_stage and layers:
        stages = -(-(layers + len(ends)) // per_stage)
        if stages % pp or stages // pp < 2:
            raise part.wrong(
                "pipeline_parallel_layers_per_stage",
                f"{per_stage} cuts {layers} layers into {stages} chunks, not several on each stage",
            )
        chunks = str(stages // pp)
    settings.put("parallel.interleave", int(chunks), part.key("pipeline_parallel_schedule"))


def _training(part: Section, parallelism: Section, known: Known, settings: Settings) -> None:
    """Sequence length and batch sizes; a pipeline cuts the local batch into micro-batches."""
    settings.put("training.seq", part.whole("seq_len", least=1) or SEQ_LEN, part.key("seq_len"))
    local, whole = (
        part.whole("local_batch_size", least=1) or LOCAL_BATCH,
        part.whole("global_batch_size", least=-1),
    )
    key, rounds, micro = part.key("local_batch_size"), 1, local
    if (known.whole("parallel.pp") or 1) > 1:
        micro = parallelism.whole("pipeline_parallel_microbatch_size", least=1) or 1
        if local % micro:
            raise part.wrong(
                "local_batch_size",
                f"{local} is no whole number of micro-batches of {micro} "
                "(pipeline_parallel_microbatch_size)",
            )
        rounds = local // micro
    steps = 1
    if whole is not None and whole > 0 and known.dp is not None:
        steps = max(1, whole // (local * known.dp))
        if steps * local * known.dp != whole:
            raise part.wrong("global_batch_size", product(whole, local, steps, known.dp))
    settings.put("training.micro_batch", micro, key)
    settings.put(
        "training.accumulation", rounds * steps, part.key("global_batch_size") if steps > 1 else key
    )
    if part.flag("enable_cpu_offload"):
        settings.put_on_host(part.key("enable_cpu_offload"))
    part.free("dtype", "mixed_precision_param", "mixed_precision_reduce", *FREE["training"])
    part.done()


def _checkpointing(part: Section, settings: Settings) -> None:
    if part.value("mode") == "memory_budget":
        raise part.wrong(
            "mode", "'memory_budget' leaves the choice to the compiler and is not modelled"
        )
    mode = part.word("mode", MODES, default="selective")
    option = part.value("selective_ac_option")
    option = OPTION if option is None else str(option) if isinstance(option, (str, int)) else ""
    part.free(*FREE["activation_checkpoint"])
    part.done()
    key = part.key("mode")
    if mode != "selective":
        settings.put("training.recompute", mode, key)
    elif option == "op":
        settings.put("training.recompute", "operators", key)
    elif option.isdecimal() and len(option) < 6:
        settings.put("training.recompute", "full", key)
        settings.put(
            "training.recompute_every", max(1, int(option)), part.key("selective_ac_option")
        )
    else:
        raise part.wrong(
            "selective_ac_option",
            f"{shown(part.value('selective_ac_option'))} is neither op nor a number of layers",
        )


def _recipe(root: Section, known: Known, settings: Settings) -> None:
    part, optimizer = root.section("training"), root.section("optimizer")
    name = (
        optimizer.word("name", {"adam": "AdamW", "adamw": "AdamW"}, default="AdamW")
        if "recipe" not in known.given
        else optimizer.value("name")
    )
    optimizer.note("early_step_in_backward")
    optimizer.free("implementation", *FREE["optimizer"])
    optimizer.done()
    whole, compute = (
        part.word("dtype", DTYPES, default="fp32"),
        part.word("mixed_precision_param", DTYPES, default="bf16"),
    )
    sent = part.word("mixed_precision_reduce", DTYPES, default="fp32")
    if "recipe" in known.given or name is None or compute is None:
        return
    recipes = UNDER_AUTOCAST if settings.items["framework"] == DDP else WITH_FP32_WEIGHTS
    if whole != "fp32":
        if compute not in (whole, "bf16"):
            raise part.wrong(
                "mixed_precision_param",
                f"{compute} beside weights in {whole} is no recipe that is known; --recipe "
                "names one",
            )
        recipes, compute = WITHOUT_MASTER_WEIGHTS, whole
    settings.put(
        "recipe",
        recipe_table(recipes, name, compute or "bf16"),
        part.key("dtype" if whole != "fp32" else "mixed_precision_param"),
    )
    if recipes is not UNDER_AUTOCAST:
        settings.put("zero.reduce_dtype", sent, part.key("mixed_precision_reduce"))
