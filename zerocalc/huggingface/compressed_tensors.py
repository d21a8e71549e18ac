"""compressed-tensors' ``config_groups`` as a format: one scheme of weights, its targets, and what
it ignores.
"""

from __future__ import annotations

import re
from typing import Any

from zerocalc import presets
from zerocalc.huggingface.quantisation_table import QuantisationError, Table

SOURCE = "compressed-tensors 0.20.1, compressors and quantization/lifecycle/initialize"
PACKED, FLOAT, INT, MX, NV = (
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
)
FORMATS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    PACKED: ("int", ("group", "channel"), (2, 3, 4, 5, 6, 7, 8)),
    FLOAT: ("float", ("tensor", "channel", "block"), (8,)),
    INT: ("int", ("tensor", "channel"), (8,)),
    MX: ("float", ("group",), (4,)),
    NV: ("float", ("tensor_group",), (4,)),
}
"""Of each format of a checkpoint: the type, the strategies and the bits that are counted."""
MX_GROUP, NV_GROUP = 32, 16
GLOBAL_SCALE_BYTES = 4
_CLASS = re.compile(r"[A-Z]\w*")


def scheme(r: Table) -> dict[str, Any]:
    """The format of the one group of weights that there is."""
    base = presets.load("quantisations", "packed-4bit")
    form = r.among("format", None, *FORMATS)
    if form is None:
        raise QuantisationError("is missing", "format")
    group = _group(r)
    kind, strategies, allowed = FORMATS[form]
    weights = Table(group["weights"], r.places, r.wide)
    weights.among("type", "int", kind)
    bits = weights.among("num_bits", 8, *allowed)
    size = weights.group("group_size", -1) if weights.table.get("group_size") is not None else None
    strategy = weights.among(
        "strategy", "group" if size else "tensor" if size is None else "channel", *strategies
    )
    symmetric = weights.table.get("symmetric") is None or weights.flag("symmetric")
    if not symmetric and form != PACKED:
        raise QuantisationError("false is not counted yet for this format", "symmetric")
    rows, columns = _block(weights, strategy, size, form)
    ordered = weights.table.get("actorder") is True or weights.among(
        "actorder", None, True, False, "group", "weight", "static", "dynamic"
    ) in (
        "group",
        "dynamic",
    )
    scale = 1 if form in (MX, NV) else 4 if r.wide else 2
    small = GLOBAL_SCALE_BYTES if form == NV else base["tensor_bytes"] if form == PACKED else 0
    title = _title(form, bits, strategy, columns)
    changes = {
        "name": form,
        "title": title,
        "source": SOURCE,
        "bits": bits,
        "word_bytes": 4 if form == PACKED else 1,
        "scale_rows": rows,
        "scale_columns": columns,
        "scale_bytes": scale,
        "zero_points": not symmetric,
        "index_bytes": 4 if ordered else 0,
        "tensor_bytes": small + _activations(r, group, form),
    }
    return {**base, **changes, "kept": _kept(r, base, group)}


def _group(r: Table) -> dict[str, Any]:
    """The one group with weights. Raises `QuantisationError` for several, and for what else changes
    the tensors.
    """
    groups = r.table.get("config_groups")
    if not isinstance(groups, dict) or not all(
        isinstance(group, dict) for group in groups.values()
    ):
        raise QuantisationError("is not a table of tables", "config_groups")
    found: list[dict[str, Any]] = [group for group in groups.values() if group.get("weights")]
    if len(found) != 1 or not isinstance(found[0]["weights"], dict):
        raise QuantisationError(
            f"has {len(found)} groups of weights; one is counted", "config_groups"
        )
    if found[0].get("output_activations"):
        raise QuantisationError("quantises outputs, which is not counted yet", "config_groups")
    sparsity = r.table.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format", "dense") == "dense"):
        raise QuantisationError("is not counted yet", "sparsity_config")
    if r.table.get("transform_config"):
        raise QuantisationError("is not counted yet", "transform_config")
    if r.table.get("kv_cache_scheme"):
        r.notes.append("quantization_config.kv_cache_scheme: its scales are not counted")
    return found[0]


def _block(weights: Table, strategy: str, size: int | None, form: str) -> tuple[int, int]:
    """How many rows and columns share a scale; 0 for all."""
    if strategy == "block":
        block = weights.table.get("block_structure")
        if not (
            isinstance(block, list)
            and len(block) == 2
            and all(type(side) is int and 1 <= side <= 10**6 for side in block)
        ):
            raise QuantisationError("is not two sizes, such as [128, 128]", "block_structure")
        return block[0], block[1]
    if strategy in ("tensor", "channel"):
        return (0 if strategy == "tensor" else 1), 0
    fixed = {MX: MX_GROUP, NV: NV_GROUP}.get(form)
    if not size or (fixed and size != fixed):
        raise QuantisationError(f"is not {fixed or 'a size'}, which the format needs", "group_size")
    return 1, size


def _activations(r: Table, group: dict[str, Any], form: str) -> int:
    """Bytes of a layer's static scale of inputs."""
    given = group.get("input_activations")
    if not given:
        return 0
    if not isinstance(given, dict):
        raise QuantisationError("input_activations is not a table", "config_groups")
    inputs = Table(given, r.places, r.wide)
    dynamic = inputs.among("dynamic", False, True, False, "local")
    if dynamic is True:
        return 0
    if form == NV:
        return GLOBAL_SCALE_BYTES
    inputs.among("strategy", "tensor", "tensor")
    if given.get("symmetric") is False:
        raise QuantisationError("false is not counted yet for inputs", "symmetric")
    return 4 if r.wide else 2


def _kept(r: Table, base: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """What is ignored, and what no target means."""
    targets = Table(group, r.places, r.wide).names("targets")
    kept = r.kept(base, "ignore", head=False, marked=True, names=r.names("ignore") or [])
    if targets is None:
        raise QuantisationError("has a group without targets", "config_groups")
    if "Linear" in targets:
        return kept
    for target in targets:
        if _CLASS.fullmatch(target):
            raise QuantisationError(
                f"targets the class {target[:60]}; Linear, names and expressions are counted",
                "config_groups",
            )
    chosen = r.list_of(targets, "config_groups", marked=True)
    for name, layers in r.followed(chosen, "config_groups", others=True).items():
        kept[name] = kept.get(name) is True or layers
    kept["head"] = kept.get("head") is True or not chosen.outside("head")
    return kept


def _title(form: str, bits: int, strategy: str, columns: int) -> str:
    shared = {"tensor": "one scale a tensor", "channel": "a scale a row"}.get(
        strategy, f"{'blocks' if strategy == 'block' else 'groups'} of {columns}"
    )
    return f"compressed-tensors {form}, {bits} bits, {shared}"
