"""Embeddings for each layer (Gemma 3n and 4): what is made of them before the layers, and how a
layer takes its own in.
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, NORMS, Kind
from zerocalc.model.kinds.mlp import activate
from zerocalc.model.module import ParameterRow, linear, replicated
from zerocalc.model.trace import Tape, Value


@record
class LayerInputs:
    """The values of embeddings for each of the ``layers``, of ``width`` numbers."""

    hidden: int
    layers: int
    width: int
    kind: str = "rms_power"
    """How their norm is computed."""


@record
class LayerInput:
    """The values of how a layer takes its own in."""

    hidden: int
    width: int
    activation: str = "gelu_tanh"


def layer_inputs_weights(i: LayerInputs) -> tuple[ParameterRow, ...]:
    """The tensors that project a token's embedding to numbers for each layer, and norm them."""
    return (
        *linear("layer_inputs", i.layers * i.width, i.hidden),
        replicated("layer_inputs.norm.weight", i.width),
    )


def make_layer_inputs(tape: Tape, x: Value, i: LayerInputs) -> None:
    """Projected, normed, added to the embeddings for layers and scaled: the sum is kept, since
    every layer multiplies by its share.
    """
    projected = tape.linear(x, "layer_inputs", "layers' inputs", (i.layers, i.width))
    normed = tape.norm(
        projected.viewed("layers' inputs", (i.layers, i.width)),
        "layers' inputs norm",
        i.kind,
        "normed",
    )
    tape.keep(tape.like(tape.cast(normed, tape.wide), "layers' inputs, summed"))


def layer_input_weights(i: LayerInput) -> tuple[ParameterRow, ...]:
    """The tensors with which a layer takes its input in."""
    return (
        *linear("layer_input.gate", i.width, i.hidden),
        *linear("layer_input.projection", i.hidden, i.width),
    )


def take_layer_input(tape: Tape, x: Value, i: LayerInput) -> Value:
    """projection(activation(gate(x)) · input); the input is a part of what was kept before the
    layers.
    """
    gate = tape.linear(x, "layer_input.gate", "gate", (i.width,))
    activated = activate(tape, gate, i.activation, "activated gate")
    own = tape.elsewhere(tape.like(activated, "the layer's input"))
    return tape.linear(
        tape.product(activated, own, "gated input"),
        "layer_input.projection",
        "layer input's result",
        (x.shape[-1],),
    )


LAYER_INPUTS = Kind(
    component="embedding",
    values=LayerInputs,
    sizes=("hidden", "layers", "width"),
    weights=layer_inputs_weights,
    forward=make_layer_inputs,
    role="side",
    reads="stream",
    words={"kind": NORMS},
)
LAYER_INPUT = Kind(
    component="other",
    values=LayerInput,
    sizes=("hidden", "width"),
    weights=layer_input_weights,
    forward=take_layer_input,
    norms=("layer input",),
    words={"activation": ACTIVATIONS},
)
