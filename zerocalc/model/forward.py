"""The forward pass through modules that follow one another: which tensor each of them reads, and
what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from zerocalc.ledger import record
from zerocalc.model.kinds.altup import alternate, augment
from zerocalc.model.kinds.attention import attend
from zerocalc.model.kinds.convolution import convolve
from zerocalc.model.kinds.delta import channels, delta
from zerocalc.model.kinds.embedding_head import embed, project
from zerocalc.model.kinds.latent import latent
from zerocalc.model.kinds.layer_inputs import make_layer_inputs, take_layer_input
from zerocalc.model.kinds.linear_attention import attend_in_blocks
from zerocalc.model.kinds.lru import recur
from zerocalc.model.kinds.mamba import selective, structured
from zerocalc.model.kinds.mlp import activate, feed
from zerocalc.model.kinds.moe import choose, route
from zerocalc.model.module import SavedRow
from zerocalc.model.trace import FULL, Tape, Value


@record
class Step:
    """One module of a pass: its type, name, and the sizes and switches that its type reads."""

    type: str
    name: str
    values: dict[str, Any]
    component: Any = None
    unquantised: tuple[str, ...] = ()


Steps: TypeAlias = Sequence[Any]
"""Steps, or modules of a file that have the same fields."""

MIXERS: dict[str, Callable[..., Value]] = {
    "attention": attend,
    "mla": latent,
    "delta": delta,
    "channel_delta": channels,
    "mamba": selective,
    "mamba2": structured,
    "convolution": convolve,
    "recurrent": recur,
    "linear_attention": attend_in_blocks,
    "layer_input": take_layer_input,
    "mlp": feed,
    "moe": route,
    "head": project,
}
"""What reads a normed stream, and whose result is added to the stream."""
REBUILD_LAYERS = frozenset({"full", "operators"})
"""Recomputation that keeps a layer's input and little else."""
SPEAK_OF = {
    "layer_input": ("layer input",),
    "attention": ("attention",),
    "mla": ("attention",),
    "delta": ("attention",),
    "channel_delta": ("attention",),
    "linear_attention": ("attention",),
    "mlp": ("mlp",),
    "moe": ("mlp", "experts", "moe"),
}
"""How norms that belong to a mixer are called."""


def passed(tape: Tape, steps: Steps, hidden: int, recompute: str) -> list[tuple[SavedRow, ...]]:
    """What each step of a pass over a stream of ``hidden`` numbers a token keeps. A layer that
    backward computes again keeps its input.
    """
    flow = _Flow(
        tape, tape.stream(f"{steps[0].name} input" if steps else "", hidden * streams_of(steps))
    )
    tape.start(recompute)
    if recompute in REBUILD_LAYERS and any(
        step.type in MIXERS and not step.values.get("idle") for step in steps
    ):
        tape.keep(flow.stream)
        tape.rebuilding = True
    kept = []
    for step in steps:
        flow.step(step)
        kept.append(tape.take())
    return kept


def streams_of(steps: Steps) -> int:
    """How many residual streams go into some steps, as the first of them says."""
    return int(steps[0].values.get("streams", 1)) if steps else 1


class _Flow:
    """Where a pass stands: the residual stream, the last norms of it, and the result of a mixer
    that is still to be added to it.

    A norm ``reads`` the ``stream``, the ``result`` of a mixer before it is added, the ``sum`` of
    both, which it replaces, or, beside a mixer, what the ``layer`` was given; unless told, its name
    says whether it belongs to the mixer before it. One ``inside`` a mixer is the mixer's own
    (``inner_norm``).
    """

    def __init__(self, tape: Tape, stream: Value) -> None:
        self.tape, self.stream = tape, stream
        self.normed: dict[str, Value] = {}
        self.read: Value | None = None
        self.result: Value | None = None
        self.mixer = ""

    def step(self, step: Any) -> None:
        if step.values.get("idle"):
            # tensors that the pass does not go through, such as a decoder's cross-attention without
            # an encoder
            return
        if step.type == "norm":
            self._norm(step)
        elif step.type == "embedding":
            embed(self.tape, **step.values)
            self.stream = self.tape.stream(self.stream.name, step.values["dim"])
        elif step.type == "router":
            choose(self.tape, self.stream, **step.values)
        elif step.type == "layer_inputs":
            make_layer_inputs(self.tape, self.stream, **step.values)
        elif step.type == "altup":
            self._add("activated stream")
            self.stream, self.read = alternate(self.tape, self.stream, **step.values), None
        elif step.type == "laurel":
            augment(self.tape, self.stream if self.read is None else self.read, **step.values)
        elif step.type == "tensors" and step.values:
            self._plain(step)
        elif step.type in MIXERS:
            self._mix(step)

    def _plain(self, step: Any) -> None:
        """What spelled-out tensors take part in: a ``dense`` layer, ``buckets`` of relative
        positions.

        Steps without tensors: a ``mask`` of dropout, and the encoder's output, which is the
        ``memory`` of all decoder layers.
        """
        tape, run = self.tape, self.tape.run
        if step.values.get("dense"):
            self._dense(step)
        if step.values.get("buckets"):
            tape.small(
                "buckets of relative positions",
                "int64",
                1,
                (run.tokens // run.micro_batch, run.seq),
            )
        if step.values.get("mask"):
            self.read = tape.dropout(self.stream if self.read is None else self.read, step.name)
        if step.values.get("memory") and not tape.autocast:
            tape.keep(tape.like(self.stream, "encoder output"))

    def _dense(self, step: Any) -> None:
        """A dense layer, perhaps with an activation, of the stream or its norm: what follows reads
        its result.
        """
        name, (out, inner) = next(
            (name, shape) for name, shape in step.tensors.items() if len(shape) > 1
        )
        x = self.stream if self.read is None else self.read
        if x.shape[-1] != inner:
            x = self.tape.stream(f"{step.name} input", inner)
        self.stream = self.tape.linear(
            x, name.removesuffix(".weight"), f"{step.name} output", (out,), self.tape.run.sequence
        )
        if activation := step.values.get("activation"):
            self.stream = activate(self.tape, self.stream, activation, f"{step.name} output")
        self.read = None

    def _norm(self, step: Any) -> None:
        tape, kind = (
            self.tape,
            step.values.get("kind") or ("layer" if step.values.get("bias") else "rms"),
        )
        if step.values.get("reads") == "inside":
            return
        weight, reads = step.values.get("weight", True), step.values.get("reads")
        if self.result is not None and (
            reads == "result"
            if reads
            else any(word in step.name for word in SPEAK_OF.get(self.mixer, ()))
        ):
            self.result = tape.norm(
                self.result, step.name, kind, f"{self.mixer} result, normed", weight=weight
            )
            self.read = None
            return
        if reads != "layer":
            self._add(f"{step.name} input")
        if step.values.get("input") == FULL:
            self.stream = tape.cast(self.stream, FULL)
        if reads == "sum":
            self.stream = self.read = tape.norm(
                self.stream, step.name, kind, f"{step.name} output", weight=weight
            )
            return
        reader = step.name.removesuffix(" norm")
        self.normed[step.name] = tape.norm(
            self.stream,
            step.name,
            kind,
            f"{'head' if reader == 'final' else reader} input",
            weight=weight,
        )
        self.read = self.normed[step.name]

    def _add(self, name: str) -> None:
        """The residual addition: a new stream."""
        if self.result is not None:
            self.stream = self.tape.like(self.stream, name)
            self.result = None
            self.normed = {}

    def _mix(self, step: Any) -> None:
        if self.read is None:
            self._add(f"{step.type} input")
            self.read = self.stream
        own = [
            normed
            for name, normed in self.normed.items()
            if any(word in name for word in SPEAK_OF.get(step.type, ()))
        ]
        if own:
            self.read = own[-1]  # mixers side by side may have a norm each
        read = next(
            (
                self.tape.like(self.read, f"{step.type} input, {how}")
                for how in ("scaled", "picked")
                if step.values.get(how)
            ),
            self.read,
        )
        if step.values.get("residual_scale"):
            self.tape.scale(self.stream, "residual stream, scaled")
        self.result = MIXERS[step.type](self.tape, read, **step.values)
        self.mixer = step.type
