"""DeepSpeed's precision and optimizer: the recipe that they come to."""

from __future__ import annotations

from zerocalc.configs.deepspeed_keys import ADDED_UP_IN, OPTIMIZERS, PRECISION_FREE, options
from zerocalc.configs.reader import Known, Section, Settings
from zerocalc.configs.recipes import (
    DTYPES,
    WITH_MASTER_WEIGHTS,
    WITH_MASTER_WEIGHTS_ALWAYS,
    recipe_table,
)
from zerocalc.quantities import shown
from zerocalc.spec.base import FieldError


def read_recipe(
    root: Section, known: Known, settings: Settings, stage: int, mixed_precision: str | None
) -> None:
    """The recipe that precision, optimizer and the dtype of accumulated gradients come to, unless a
    flag names one.
    """
    if "recipe" in known.given:
        root.free("bf16", "bfloat16", "fp16", "data_types", "optimizer", "torch_autocast")
        return
    compute, where = _compute(root, settings, mixed_precision)
    kinds = root.section("data_types")
    kept = kinds.word("grad_accum_dtype", DTYPES)
    dtype = kinds.word("param_dtype", DTYPES)
    kinds.free("buffer_dtype")
    kinds.done()
    if dtype not in (None, compute):
        raise kinds.wrong("param_dtype", f"{dtype} contradicts {where}, which makes it {compute}")
    if stage == 0 and kept not in (None, compute):
        raise kinds.wrong(
            "grad_accum_dtype",
            f"{kept} beside a model in {compute} needs ZeRO: a zero_optimization.stage of "
            "at least 1",
        )
    optimizer, key = _optimizer(root, settings)
    root.refuse("torch_autocast", "no recipe is known for autocast under ZeRO; --recipe names one")
    for part, keys in (
        ("bf16", ("bf16_master_weights_and_grads", "bf16_optimizer_states")),
        ("fp16", ("fp16_master_weights_and_grads",)),
    ):
        for name in keys:
            root.section(part).refuse(
                name, "no recipe keeps master weights in 16 bits; --recipe names one"
            )
    apart = ADDED_UP_IN in options()
    table = recipe_table(recipes_of(stage), optimizer, compute, None if apart else kept)
    if table is None:
        raise FieldError(
            key, f"no recipe is known for {optimizer} in {compute}; --recipe names one"
        )
    settings.put("recipe", table, key)
    if kept not in (None, compute) and apart:
        settings.put(f"zero.{ADDED_UP_IN}", kept, "data_types.grad_accum_dtype")
    elif kept not in (None, compute):  # what is sent stays in the model's dtype
        settings.put("zero.reduce_dtype", compute, "data_types.grad_accum_dtype")


def recipes_of(stage: int) -> dict[tuple[str, str], str]:
    """The recipes of a stage: from stage 1 on the optimizer steps on shards of its own, copies of
    fp32 weights too.
    """
    return WITH_MASTER_WEIGHTS_ALWAYS if stage else WITH_MASTER_WEIGHTS


def _compute(root: Section, settings: Settings, mixed_precision: str | None) -> tuple[str, str]:
    """The dtype that the model runs in, and the key that says so."""
    old = "bfloat16" if "bf16" not in root.table and "bfloat16" in root.table else "bf16"
    parts = {"bf16": root.section(old), "fp16": root.section("fp16")}
    root.free("bfloat16")
    on = {}
    for dtype, part in parts.items():
        enabled = part.flag("enabled")
        if (
            enabled is None
            and (part.is_auto("enabled") or not part.table)
            and mixed_precision is not None
        ):
            enabled = mixed_precision == dtype
        on[dtype] = enabled
        part.free(*PRECISION_FREE)
        part.read.update(
            (
                "bf16_master_weights_and_grads",
                "bf16_optimizer_states",
                "fp16_master_weights_and_grads",
            )
        )
        part.done()
    if on["bf16"] and on["fp16"]:
        raise FieldError("fp16.enabled", f"true contradicts {old}.enabled, which is true too")
    if mixed_precision in ("bf16", "fp16") and any(
        value and dtype != mixed_precision for dtype, value in on.items()
    ):
        raise FieldError(
            "mixed_precision",
            f"{mixed_precision} contradicts the DeepSpeed configuration, which enables the "
            "other dtype",
        )
    if not any(on.values()):
        left = [
            dtype
            for dtype, part in parts.items()
            if part.is_auto("enabled") and mixed_precision is None
        ]
        if not left:
            return "fp32", "bf16 and fp16 off"
        settings.notes.append(f"{left[0]}.enabled auto: taken as true; --recipe says otherwise")
        return left[0], f"{left[0]}.enabled"
    found = "bf16" if on["bf16"] else "fp16"
    return found, f"{old if found == 'bf16' else found}.enabled"


def _optimizer(root: Section, settings: Settings) -> tuple[str, str]:
    """The optimizer by our name for it, and the key that says so."""
    part = root.section("optimizer")
    name = part.value("type")
    params = part.section("params")
    part.free("legacy_fusion")
    part.done()
    if name is None:
        if not part.table:
            settings.notes.append(
                "no optimizer in the DeepSpeed configuration: taken as Adam; --recipe says "
                "otherwise"
            )
        return "AdamW", "optimizer"
    found = OPTIMIZERS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise part.wrong("type", f"no recipe is known for {shown(name)}; --recipe names one")
    momentum = params.value("momentum")
    return ("SGD with momentum" if found == "SGD" and momentum else found), part.key("type")
