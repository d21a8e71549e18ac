"""LoRA: a frozen base, and two low-rank matrices added to each adapted linear layer
(arXiv 2106.09685 §4.1).
"""

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import field_validator, model_validator

from zerocalc.quantities import Fraction, Whole, shown
from zerocalc.spec.base import FieldError, Spec, items, read_part
from zerocalc.spec.recipe import FloatDtype

ALL_LINEAR = "all-linear"

LLAMA_TARGETS = ("q_proj", "v_proj")
DEFAULT_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt2", "gpt-sw3", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(
        ("bloom", "falcon", "gpt_neox", "RefinedWeb", "RefinedWebModel", "chatglm"),
        ("query_key_value",),
    ),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), ("query", "value")),
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    "codegen": ("qkv_proj",),
    "mpt": ("Wqkv",),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "rwkv": ("key", "value", "receptance", "output"),
}
"""The default targets of PEFT 0.21 by family (peft/utils/constants.py,
TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); of the other families it knows those like
Llama, with `LLAMA_TARGETS`.
"""

_TARGET = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)
_MOST_TARGETS = 100


class Lora(Spec):
    """LoRA adapters on a frozen base."""

    rank: Whole
    """Rank of the adapters. Trained parameters, their states and their traffic grow with it."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers with adapters, as transformers spells them, or ``all-linear``; a
    list or text such as ``q_proj,v_proj``. Default: PEFT's for the model's family, filled in when
    the model is read.
    """
    dtype: FloatDtype = "fp32"
    """Dtype of the adapters. Default: fp32, as PEFT makes them (autocast_adapter_dtype)."""
    dropout: Fraction = 0.0
    """Dropout rate of the adapters' input. Default: 0; above 0 a mask, and the input after it, are
    saved for backward.
    """
    assumed: tuple[str, ...] = ()
    """What was filled in, in words to print with every answer. Default: nothing."""

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, data: Any) -> Any:
        """Refuse variants of LoRA with other tensors than the two matrices."""
        if isinstance(data, dict) and data.get("use_dora"):
            raise FieldError("model.lora.use_dora", "DoRA is not supported, only plain LoRA")
        return (
            {key: value for key, value in data.items() if key != "use_dora"}
            if isinstance(data, dict)
            else data
        )

    @field_validator("targets", mode="before")
    @classmethod
    def _targets(cls, value: Any) -> Any:
        """A list of names, or text such as ``q_proj,v_proj``."""
        if value is None:
            return ()
        names = []
        for part in items(value):
            name = part.strip() if isinstance(part, str) else ""
            if name.lower() == ALL_LINEAR:
                name = ALL_LINEAR
            elif not _TARGET.fullmatch(name):
                raise ValueError(
                    f"{shown(part)} is not the name of a linear layer such as q_proj, nor "
                    f"{ALL_LINEAR}"
                )
            names.append(name)
        if len(names) > _MOST_TARGETS:
            raise ValueError(f"has {len(names)} names; the most is {_MOST_TARGETS}")
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if ALL_LINEAR in self.targets and len(self.targets) > 1:
            raise FieldError(
                "model.lora.targets", f"{ALL_LINEAR} means every linear layer: name it alone"
            )
        return self


def read_lora(value: Any) -> Lora | None:
    """The adapters of a model, validated on their own; ``None`` without any. Raises `FieldError`
    with the field's path in the Job.
    """
    if value is None:
        return None
    if isinstance(value, dict) and value.get("rank") is None:
        given = next(
            (key for key in value if key in Lora.model_fields and key not in ("rank", "assumed")),
            "rank",
        )
        raise FieldError(
            f"model.lora.{given}",
            "is missing" if given == "rank" else "adapters need a rank (model.lora.rank)",
        )
    return read_part("model.lora", Lora, value)


def with_targets(value: Any, family: Any) -> Any:
    """Adapters with PEFT's default targets for the family filled in if none are named, and an
    assumption that says so.
    """
    data = value.model_dump() if isinstance(value, Lora) else value
    if not isinstance(data, dict):
        return value
    targets = (
        DEFAULT_TARGETS.get(family, LLAMA_TARGETS) if isinstance(family, str) else LLAMA_TARGETS
    )
    words = (
        f"LoRA on {', '.join(targets)} (PEFT's "
        f"default{'' if targets != LLAMA_TARGETS else ' for Llama'})"
    )
    if data.get("targets") in (None, (), []):
        return (
            {**data, "targets": targets, "assumed": (words,)}
            if data.get("rank") is not None
            else data
        )
    same = (
        isinstance(data["targets"], (list, tuple)) and tuple(data["targets"]) == targets
    )  # as a saved job has them
    return data if same else {key: value for key, value in data.items() if key != "assumed"}
