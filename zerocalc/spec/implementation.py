"""The implementation of the layers: which tensors its operations save for backward, as data."""

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
"""Activation functions, as far as they differ in what they save: ``gelu_new``, ``gelu_fast``,
``quick_gelu``, ``xielu`` and ``clamped_swiglu`` (GPT-OSS's, of gate and up) are written as several
operations, the others run as one kernel.
"""
UNKNOWN = "unknown"
"""An activation function that is not known, nor what it saves."""


class Implementation(Spec):
    """How the code of a decoder layer is written, as far as that changes what it saves for
    backward or holds in buffers. ``as_written`` means: as in the model's own class, which its
    family's file describes.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the implementation."""
    title: Annotated[str, Field(max_length=200)] = ""
    """Description in words, printed with every answer. Default: none."""
    source: Annotated[str, Field(max_length=2000)]
    """Where it was read."""
    rms_norm: Literal["fused", "eager"]
    """RMSNorm in one kernel, which saves its input; or step by step in fp32, which saves fp32
    tensors too.
    """
    statistics: StrictBool
    """Whether the means and deviations that norms save are counted."""
    activation: Literal["fused", "as_written"]
    """Activation functions in one kernel each, or as the class writes them."""
    gated: Literal["fused", "separate"]
    """A gated MLP's product of gate and up inside the activation's kernel, or as an operation of
    its own, which saves both factors.
    """
    qkv: Literal["as_written", "fused", "split", "separate"]
    """One matmul for queries, keys and values with views of its result (``fused``) or copies
    (``split``), or three matmuls (``separate``).
    """
    rotary: Literal["ignored", "shared", "each_layer"]
    """Whether the sines and cosines of rotary embeddings are saved: not at all, once for the model,
    or by each layer.
    """
    softmax: Literal["compute", "fp32", "as_written"]
    """Dtype in which unfused attention saves its probabilities."""
    expands: tuple[Kernel, ...]
    """Attention kernels that get keys and values repeated for every query head, under
    grouped-query attention; the repeated copies are saved.
    """
    sequence_input: Literal["gathered_again", "kept_whole"]
    """Under sequence parallelism, whether a layer saves its own shard of a matmul's input and
    all-gathers it again in backward, or saves the whole input.
    """
    experts: Literal["grouped", "each"]
    """One grouped matmul over all experts, or one expert after the other."""
    expert_weights: Literal["results", "inside"] = "results"
    """Where router weights are multiplied in: into the experts' results, which are saved then, or
    into the input of the last matmul (inside the activation's kernel if that is gated). Default:
    results.
    """
    kept_product: Whole
    """With ``recompute`` operators, the output of every n-th matmul is saved, and attention's: this
    n.
    """
    shared_buffer: StrictBool
    """Whether one buffer, allocated for good, takes gathered sequences and attention scores."""
    gemm_workspace: StrictBool = False
    """Whether matmuls have a workspace of their own (Transformer Engine), next to cuBLAS's.
    Default: no. Counted if the cluster's ``workspaces`` is set.
    """
    grouped_workspaces: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    """Further such workspaces for the grouped matmuls of experts. Default: 0."""
    stage_inputs: StrictBool = False
    """Whether a pipeline stage holds its last micro-batch's input and the gradient of that until
    the next step. Default: no.
    """
    placeholder_gradients: StrictBool = False
    """Whether matmuls that accumulate into a gradient buffer return an unused tensor instead of a
    gradient, one for each shape of weight, allocated once. Default: no.
    """
    context_output: Literal["once", "twice"] = "once"
    """Whether context parallelism saves attention's output once, or also in the layout in which it
    was computed. Default: once.
    """
    loss_in_model: StrictBool = False
    """Whether the loss is computed inside the model's forward, before a framework's hooks on the
    end of the model run (transformers' classes, which are given labels). Default: no.
    """
    lacks: tuple[Literal["flash attention", "context parallelism"], ...] = ()
    """What the layers do not support. It is counted all the same, and a note says so. Default:
    nothing.
    """
    instead: Annotated[str, Field(max_length=LONGEST_PATH)] | None = None
    """The implementation that supports what this one lacks, for the note. Default: none."""
    loss: Annotated[str, Field(max_length=200)]
    """The loss that a job uses by default: a preset's name, or a TOML file's path."""
