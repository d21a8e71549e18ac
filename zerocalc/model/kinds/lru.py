"""The recurrent block of Griffin (arXiv 2402.19427): its tensors, and its forward pass up to the
residual addition.

Source: transformers 5.24.0, models/recurrent_gemma/modeling_recurrent_gemma.py, which runs its
recurrence token by token in PyTorch's operations.
"""

from __future__ import annotations

from zerocalc.ledger import record
from zerocalc.model.kind import ACTIVATIONS, Kind
from zerocalc.model.kinds.mlp import activate
from zerocalc.model.module import ParameterRow, linear, tensor
from zerocalc.model.trace import FULL, MASK, Tape, Value


@record
class Recurrent:
    """The values of a recurrent block."""

    hidden: int
    width: int
    heads: int
    conv: int
    activation: str = "gelu_tanh"


def recurrent_weights(r: Recurrent) -> tuple[ParameterRow, ...]:
    """The tensors of a recurrent block; its gates' matrices are blocks on the
    diagonal, one a head.
    """
    block = r.width // r.heads
    gates: list[ParameterRow] = []
    for name in ("input_gate", "recurrent_gate"):
        gates += [
            tensor(f"recurrent.{name}.weight", r.heads, block, block),
            tensor(f"recurrent.{name}.bias", r.heads, block),
        ]
    return (
        *linear("recurrent.y", r.width, r.hidden, bias=True),
        *linear("recurrent.x", r.width, r.hidden, bias=True),
        *linear("recurrent.out", r.hidden, r.width, bias=True, split="rows"),
        tensor("recurrent.conv.weight", r.width, 1, r.conv),
        tensor("recurrent.conv.bias", r.width),
        tensor("recurrent.decay", r.width),
        *gates,
    )


def recur(tape: Tape, x: Value, r: Recurrent) -> Value:
    """The forward pass of a recurrent block: what its operations keep one by one, and two fp32
    vectors for each step of the recurrence.
    """
    run, tp, hidden = tape.run, tape.run.tp, x.shape[-1]
    x = tape.entering(x)
    gate = activate(
        tape, tape.linear(x, "recurrent.y", "gate", (r.width,), tp), r.activation, "activated gate"
    )
    branch = tape.linear(x, "recurrent.x", "convolution input", (r.width,), tp)
    tape.keep(branch)
    sequence = run.tokens // run.micro_batch
    tape.small(
        "convolution output, with its margin",
        branch.dtype,
        tp,
        (run.micro_batch, r.width, sequence + r.conv - 1),
    )
    for name in (
        "gates' input in blocks",
        "input gate",
        "recurrent gate",
        "recurrent gate, scaled",
        "decay",
        "decay squared",
        "1 - decay squared",
        "gated input",
        "input's multiplier",
    ):
        tape.small(name, branch.dtype, tp, (run.tokens, r.width))
    tape.small("starts of sequences", MASK, 1, (2, sequence))
    tape.small("decays and states, step by step", FULL, tp, (run.tokens, 2, r.width))
    result = tape.product(
        Value("recurrence's result", branch.dtype, tp, gate.shape), gate, "gated result"
    )
    return tape.linear(result, "recurrent.out", "recurrent result", (hidden,), run.sequence)


RECURRENT = Kind(
    component="attention",
    values=Recurrent,
    sizes=("hidden", "width", "heads", "conv"),
    weights=recurrent_weights,
    forward=recur,
    words={"activation": ACTIVATIONS},
)
