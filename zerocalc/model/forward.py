"""The forward pass through modules that follow one another: which tensor each of them reads, and
what it keeps.
"""

from __future__ import annotations

from zerocalc.model.kind import IDLE
from zerocalc.model.kinds.norm import Norm
from zerocalc.model.module import SavedRow
from zerocalc.model.registry import Step, Steps
from zerocalc.model.trace import FULL, Tape, Value

REBUILD_LAYERS = frozenset({"full", "operators"})
"""Recomputation that keeps a layer's input and little else."""


def passed(tape: Tape, steps: Steps, hidden: int, recompute: str) -> list[tuple[SavedRow, ...]]:
    """What each step of a pass over a stream of ``hidden`` numbers a token keeps. A layer that
    backward computes again keeps its input.
    """
    flow = _Flow(
        tape, tape.stream(f"{steps[0].name} input" if steps else "", hidden * streams_of(steps))
    )
    tape.start(recompute)
    if recompute in REBUILD_LAYERS and any(
        step.kind.role == "mixer" and not step.values.get(IDLE) for step in steps
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
    """The state of a pass: the residual stream, the last norms of it, and the result of a mixer
    that is still to be added to it. What a norm reads is said in `Norm`.
    """

    def __init__(self, tape: Tape, stream: Value) -> None:
        self.tape, self.stream = tape, stream
        self.normed: dict[str, Value] = {}
        self.read: Value | None = None
        self.result: Value | None = None
        self.mixer = ""
        self.own_norms: tuple[str, ...] = ()

    def step(self, step: Step) -> None:
        if step.values.get(IDLE):
            return
        kind, fields = step.kind, step.fields
        if kind.role == "norm":
            self._norm(step.name, fields)
        elif kind.role == "mixer":
            self._mix(step)
        elif kind.role == "stream":
            self._add("activated stream")
            self.stream, self.read = kind.forward(self.tape, self.stream, fields), None
        elif kind.role == "side":
            normed = self.read if kind.reads == "normed" else None
            kind.forward(self.tape, self.stream if normed is None else normed, fields)
        elif step.values:
            self.stream, self.read = kind.forward(self.tape, self.stream, self.read, step)

    def _norm(self, name: str, norm: Norm) -> None:
        if norm.reads == "inside":
            return
        tape, weight, reads = self.tape, norm.weight, norm.reads
        kind = norm.kind or ("layer" if norm.bias else "rms")
        if self.result is not None and (
            reads == "result" if reads else any(word in name for word in self.own_norms)
        ):
            self.result = tape.norm(
                self.result, name, kind, f"{self.mixer} result, normed", weight=weight
            )
            self.read = None
            return
        if reads != "layer":
            self._add(f"{name} input")
        if norm.input == FULL:
            self.stream = tape.cast(self.stream, FULL)
        if reads == "sum":
            self.stream = self.read = tape.norm(
                self.stream, name, kind, f"{name} output", weight=weight
            )
            return
        reader = name.removesuffix(" norm")
        self.normed[name] = tape.norm(
            self.stream,
            name,
            kind,
            f"{'head' if reader == 'final' else reader} input",
            weight=weight,
        )
        self.read = self.normed[name]

    def _add(self, name: str) -> None:
        """The residual addition: a new stream."""
        if self.result is not None:
            self.stream = self.tape.like(self.stream, name)
            self.result = None
            self.normed = {}

    def _mix(self, step: Step) -> None:
        kind = step.kind
        if self.read is None:
            self._add(f"{step.type} input")
            self.read = self.stream
        own = [
            normed
            for name, normed in self.normed.items()
            if any(word in name for word in kind.norms)
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
        self.result = kind.forward(self.tape, read, step.fields)
        self.mixer, self.own_norms = step.type, kind.norms
