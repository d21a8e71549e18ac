"""The ``quantization_config`` of a Hugging Face config as a format: bits, groups, and which modules
it leaves as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerocalc import presets
from zerocalc.huggingface import compressed_tensors
from zerocalc.huggingface.family_file import Places
from zerocalc.huggingface.quantisation_table import QuantisationError, Table, listed, spelled
from zerocalc.presets import nearest
from zerocalc.spec.quantisation import Quantisation

NEUTRAL = frozenset(
    {
        "quant_method",
        "modules_to_not_convert",
        "dequantize",
        "quantization_status",
        "quant_library",
        "quantizer",
    }
)

KNOWN: dict[str, frozenset[str]] = {
    "bitsandbytes": frozenset(
        {
            *(
                "load_in_8bit",
                "load_in_4bit",
                "_load_in_8bit",
                "_load_in_4bit",
                "bnb_4bit_quant_type",
                "bnb_4bit_use_double_quant",
            ),
            *(
                "bnb_4bit_compute_dtype",
                "bnb_4bit_quant_storage",
                "llm_int8_skip_modules",
                "llm_int8_threshold",
                "llm_int8_has_fp16_weight",
            ),
            "llm_int8_enable_fp32_cpu_offload",
        }
    ),
    "gptq": frozenset(
        {
            *(
                "bits",
                "group_size",
                "desc_act",
                "sym",
                "format",
                "checkpoint_format",
                "lm_head",
                "dynamic",
                "modules_in_block_to_quantize",
                "pack_dtype",
            ),
            *(
                "act_group_aware",
                "backend",
                "batch_size",
                "block_name_to_quantize",
                "cache_block_outputs",
                "damp_auto_increment",
                "damp_percent",
            ),
            *(
                "dataset",
                "exllama_config",
                "is_marlin_format",
                "max_input_length",
                "meta",
                "model_file_base_name",
                "model_name_or_path",
                "model_seqlen",
            ),
            *(
                "module_name_preceding_first_block",
                "pad_token_id",
                "static_groups",
                "tokenizer",
                "true_sequential",
                "use_cuda_fp16",
                "use_exllama",
            ),
            *(
                "disable_exllama",
                "inject_fused_attention",
                "inject_fused_mlp",
                "offload_to_disk",
                "hyb_act",
                "mse",
                "v2",
            ),
        }
    ),
    "awq": frozenset(
        {
            *(
                "bits",
                "w_bit",
                "group_size",
                "q_group_size",
                "version",
                "format",
                "zero_point",
                "backend",
                "do_fuse",
                "exllama_config",
            ),
            *(
                "fuse_max_seq_len",
                "modules_to_fuse",
                "desc_act",
                "sym",
                "lm_head",
                "meta",
                "pack_dtype",
                "dynamic",
            ),
        }
    ),
    "fp8": frozenset(
        {
            *(
                "activation_scheme",
                "weight_block_size",
                "fmt",
                "ignored_layers",
                "modules_to_convert",
                "scale_fmt",
                "expert_dtype",
                "kv_cache_scheme",
            ),
        }
    ),
    "fbgemm_fp8": frozenset({"activation_scale_ub"}),
    "mxfp4": frozenset(),
    "compressed-tensors": frozenset(
        {
            *(
                "config_groups",
                "format",
                "ignore",
                "kv_cache_scheme",
                "global_compression_ratio",
                "sparsity_config",
                "transform_config",
                "version",
            ),
            *("run_compressed", "use_optimized_inference"),
        }
    ),
}
"""The keys that each method's configs hold; those of them that change bytes are read below."""


def read(table: Any, places: Places | None, wide: bool) -> tuple[Quantisation, list[str]]:
    """The format that a ``quantization_config`` describes, and what was taken on trust.

    ``places``: the layers of each group of a decoder; ``None`` where the layers are in several
    places, and no list of single ones can be followed. ``wide``: whether the checkpoint's other
    tensors are fp32. Raises `QuantisationError`. Source: transformers 5.24.0,
    utils/quantization_config.
    """
    if not isinstance(table, Mapping):
        raise QuantisationError("is not a table")
    method = table.get("quant_method")
    if method is None and (table.get("load_in_4bit") or table.get("load_in_8bit")):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in METHODS:
        near = nearest(method, tuple(METHODS)) if isinstance(method, str) else ""
        raise QuantisationError(
            f"{spelled(method)} is not known{near}; {', '.join(METHODS)} are; without the "
            "table the model is counted as before quantisation",
            "quant_method",
        )
    reader = Table(table, places, wide)
    values = METHODS[method](reader)
    if reader.names_modules and values.get("parts", "linear") == "linear":
        values["parts"] = "decoder"
    unknown = [key for key in table if key not in KNOWN[method] and key not in NEUTRAL]
    if unknown:
        reader.notes.append(
            f"quantization_config: not known, taken as changing nothing: {listed(unknown)}"
        )
    return Quantisation.model_validate(values), reader.notes


def _bitsandbytes(r: Table) -> dict[str, Any]:
    eight = r.flag("load_in_8bit") or r.flag("_load_in_8bit")
    four = r.flag("load_in_4bit") or r.flag("_load_in_4bit")
    if eight == four:
        raise QuantisationError(
            "says neither load_in_4bit nor load_in_8bit"
            if not four
            else "says both load_in_4bit and load_in_8bit"
        )
    if r.flag("llm_int8_has_fp16_weight"):
        raise QuantisationError(
            "keeps 16-bit weights beside, which is not counted yet", "llm_int8_has_fp16_weight"
        )
    if eight:
        base = presets.load("quantisations", "int8")
    else:
        kind = r.among("bnb_4bit_quant_type", "fp4", "fp4", "nf4")
        base = presets.load(
            "quantisations", f"{kind}-double" if r.flag("bnb_4bit_use_double_quant") else kind
        )
    return {**base, "kept": r.kept(base, "llm_int8_skip_modules", head=False)}


def _gptq(r: Table) -> dict[str, Any]:
    base = presets.load("quantisations", "gptq-4bit")
    bits = r.among("bits", None, 2, 3, 4, 8)
    if bits is None:
        raise QuantisationError("is missing", "bits")
    for key in ("checkpoint_format", "format"):
        r.among(key, "gptq", "gptq", "gptq_v2")
    r.among("pack_dtype", "int32", "int32")
    if r.flag("is_marlin_format"):
        raise QuantisationError("is not counted yet", "is_marlin_format")
    size = r.group("group_size", 128)
    kept = r.kept(base, "modules_to_not_convert")
    kept["head"] = not r.flag("lm_head")
    kept |= _only_in_blocks(r) | _skipped(r)
    return {**base, **_named(base, "GPTQ", bits, size), "kept": kept}


def _only_in_blocks(r: Table) -> dict[str, Any]:
    """All but the layers that a list of lists names, where there is one."""
    key = "modules_in_block_to_quantize"
    lists = r.table.get(key)
    if lists is None:
        return {}
    if not isinstance(lists, list) or not all(
        isinstance(one, list) and all(isinstance(name, str) and name for name in one)
        for one in lists
    ):
        raise QuantisationError("is not a list of lists of names", key)
    return r.followed(r.list_of([name for one in lists for name in one], key), key, others=True)


def _skipped(r: Table) -> dict[str, Any]:
    """The layers that ``dynamic`` leaves out; layers with settings of their own are not counted."""
    table = r.table.get("dynamic")
    if not table:
        return {}
    if not isinstance(table, dict) or any(not name.startswith("-:") for name in table):
        raise QuantisationError(
            "gives layers settings of their own, which is not counted yet", "dynamic"
        )
    return r.followed(
        r.list_of([f"re:{name[2:]}" for name in table], "dynamic", marked=True), "dynamic"
    )


def _awq(r: Table) -> dict[str, Any]:
    base = presets.load("quantisations", "awq-4bit")
    for key in ("bits", "w_bit"):
        r.among(key, 4, 4)
    for key in ("version", "format"):
        value = r.table.get(key)
        if not (isinstance(value, str) and value.lower() == "gemm"):
            r.among(key, "gemm", "gemm")
    if r.table.get("dynamic"):
        raise QuantisationError(
            "gives layers settings of their own, which is not counted yet", "dynamic"
        )
    size = r.group("q_group_size" if "q_group_size" in r.table else "group_size", 128)
    kept = r.kept(base, "modules_to_not_convert")
    kept["head"] = not r.flag("lm_head")
    return {**base, **_named(base, "AWQ", 4, size), "kept": kept}


def _named(base: Mapping[str, Any], method: str, bits: int, size: int) -> dict[str, Any]:
    """A format's name, bits and groups where they differ from its preset's."""
    if (bits, size) == (base["bits"], base["scale_columns"]):
        return {}
    groups = f"groups of {size}" if size else "one group a row"
    return {
        "name": f"{method.lower()}-{bits}bit",
        "title": f"{method}, {bits} bits, {groups}",
        "bits": bits,
        "scale_columns": size,
    }


def _fp8(r: Table) -> dict[str, Any]:
    base = presets.load("quantisations", "fp8")
    r.among("fmt", "e4m3", "e4m3", "float8_e4m3fn")
    r.among("expert_dtype", "fp8", "fp8")
    if r.table.get("modules_to_convert"):
        raise QuantisationError(
            "quantises embeddings too, which is not counted yet", "modules_to_convert"
        )
    block = r.table.get(
        "weight_block_size"
    )  # none: the quantisers that write no such key keep one scale a tensor
    if block is None:
        rows, columns, title = 0, 0, "fp8, one scale a tensor"
    elif (
        isinstance(block, list)
        and len(block) == 2
        and all(type(side) is int and 1 <= side <= 10**6 for side in block)
    ):
        (rows, columns), title = block, f"fp8, blocks of {block[0]} x {block[1]}"
    else:
        raise QuantisationError(
            f"{spelled(block)} is not two sizes, such as [128, 128]", "weight_block_size"
        )
    static = r.among("activation_scheme", "dynamic", "dynamic", "static") == "static"
    small = r.among("scale_fmt", "float", "float", "ue8m0") == "ue8m0"
    if small:
        r.notes.append(
            "quantization_config.scale_fmt ue8m0: scales of one byte, as transformers "
            "keeps them; some checkpoints keep them in fp32"
        )
    key = (
        "ignored_layers"
        if r.table.get("modules_to_not_convert") is None
        else "modules_to_not_convert"
    )
    changes = {
        "scale_rows": rows,
        "scale_columns": columns,
        "scale_bytes": 1 if small else 4,
        "tensor_bytes": 4 if static else 0,
        "title": title,
    }
    return {**base, **changes, "kept": r.kept(base, key, head=False)}


def _fbgemm(r: Table) -> dict[str, Any]:
    base = presets.load("quantisations", "fp8")
    source = "transformers 5.24.0, FbgemmFp8Linear"
    changes = {
        "name": "fbgemm_fp8",
        "title": "fp8, a scale a row",
        "source": source,
        "scale_rows": 1,
        "scale_columns": 0,
    }
    return {**base, **changes, "kept": r.kept(base, "modules_to_not_convert", head=False)}


def _mxfp4(r: Table) -> dict[str, Any]:
    base = presets.load("quantisations", "mxfp4")
    return {**base, "kept": r.kept(base, "modules_to_not_convert")}


METHODS: dict[str, Callable[[Table], dict[str, Any]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "compressed-tensors": compressed_tensors.scheme,
}
