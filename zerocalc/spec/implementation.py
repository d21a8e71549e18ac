"""The implementation of the layers: which tensors its operations keep for backward, as data."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from zerocalc.quantities import Whole
from zerocalc.spec.base import LONGEST_PATH, Spec

Kernel = Literal["flash", "efficient", "math", "eager"]
Activation = Literal[
    "gelu",
    "gelu_new",
    "gelu_tanh",
    "gelu_fast",
    "quick_gelu",
    "silu",
    "relu",
    "relu2",
    "sigmoid",
    "tanh",
    "xielu",
    "clamped_swiglu",
]
"""Activations that are told apart by what they keep: ``gelu_new``, ``gelu_fast``, ``quick_gelu``,
``xielu`` and ``clamped_swiglu`` (GPT-OSS's, of gate and up) are written out in steps, the others
run as one kernel.
"""
UNKNOWN = "unknown"
"""An activation of which it is not known what it keeps."""


class Implementation(Spec):
    """How somebody's code writes a decoder layer, where that decides what is kept.

    ``as_written`` stands for what the model's own class does (a family's file says it); the others
    hold whatever the model.

    - ``rms_norm``: ``eager`` computes it step by step in fp32. ``statistics``: whether norms' means
    and deviations are counted.
    - ``activation``: whether activations run as one kernel each. ``gated``: whether a gated MLP
    multiplies inside its activation's kernel.
    - ``qkv``: three projections, or one for queries, keys and values, which are views of its result
    (``fused``) or copies (``split``).
    - ``rotary``: whether its sines and cosines are kept by each layer.
    - ``softmax``: dtype in which unfused attention keeps its scores. ``expands``: kernels that get
    keys and values repeated for every head.
    - ``sequence_input``: under sequence parallelism, whether a layer keeps its share of a product's
    input and gathers it again, or all of it.
    - ``experts``: one product over all experts, or one expert after the other. ``expert_weights``:
    whether they multiply the experts' ``results``, or what goes ``inside`` into the last product,
    in the activation's own kernel where it is gated.
    - ``kept_product``: recomputation by operator keeps the output of every so manieth product,
    beside attention's. ``shared_buffer``: one buffer, held for good, in which sequences are
    gathered and scores computed.
    - ``gemm_workspace``: whether its matrix products have a workspace of their own;
    ``grouped_workspaces``: how many more those over all experts have. ``stage_inputs``: whether a
    pipeline stage refers to its last micro-batch's input, and its gradient, until the next step.
    ``placeholder_gradients``: whether products that add to a gradient buffer themselves hand on a
    tensor that nobody reads, one for each shape of a layer's weights, made once.
    - ``lacks``: what its layers cannot run, and which implementation can (``instead``); counted
    where it is asked for all the same.
    - ``context_output``: whether context parallelism keeps attention's output as it was computed
    beside the one that is sent back to its tokens.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    rms_norm: Literal["fused", "eager"]
    statistics: StrictBool
    activation: Literal["fused", "as_written"]
    gated: Literal["fused", "separate"]
    qkv: Literal["as_written", "fused", "split", "separate"]
    rotary: Literal["ignored", "shared", "each_layer"]
    softmax: Literal["compute", "fp32", "as_written"]
    expands: tuple[Kernel, ...]
    sequence_input: Literal["gathered_again", "kept_whole"]
    experts: Literal["grouped", "each"]
    expert_weights: Literal["results", "inside"] = "results"
    kept_product: Whole
    shared_buffer: StrictBool
    gemm_workspace: StrictBool = False
    grouped_workspaces: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    stage_inputs: StrictBool = False
    placeholder_gradients: StrictBool = False
    context_output: Literal["once", "twice"] = "once"
    loss_in_model: StrictBool = False
    """Whether the loss is computed inside the model's forward, before a framework's hooks on the
    model's end run (transformers' classes, which are given labels).
    """
    lacks: tuple[Literal["flash attention", "context parallelism"], ...] = ()
    instead: Annotated[str, Field(max_length=LONGEST_PATH)] | None = None
    loss: Annotated[str, Field(max_length=200)]
