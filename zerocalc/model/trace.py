"""One forward pass, operation by operation: what automatic differentiation keeps of each for
backward.

Every method is one operation of PyTorch and keeps what that operation's backward reads. A tensor is
kept once however many operations read it, and a view is the tensor itself. Source: PyTorch's
derivatives (tools/autograd/derivatives.yaml) and the operations that autocast runs in fp32 or in 16
bits ("Automatic Mixed Precision", op-specific behaviour).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from zerocalc.model.module import Layout, SavedRow
from zerocalc.spec.implementation import Implementation

FULL = "fp32"
MASK = "int8"
"""Dropout keeps one byte an element ([SP] §4.1)."""

MERGED = " with its adapter"
"""How the sum of a weight and its adapter's product is named behind the weight."""
ELSEWHERE = 1 << 30
"""The row of a tensor that is kept by another pass."""

Shape = tuple[int, ...]
NormKind = Literal[
    "layer", "layer_fp32", "rms", "rms_fp32", "rms_squares", "rms_power", "rms_fused"
]
"""LayerNorm or RMSNorm; ``_fp32`` where the class scales by the weight before it casts back (and,
of LayerNorm, writes it out step by step), ``rms_squares`` where only the squares are taken in fp32
(T5), ``rms_power`` as rms_fp32 with a power for the root (Gemma 4), ``rms_fused`` where PyTorch's
own kernel runs it.
"""


class Value:
    """A tensor of the forward pass.

    ``divisor``: what tensor or sequence parallelism divides it by. ``base``: the tensor that holds
    its numbers, itself but for views. ``row``: where among its module's rows it is kept, -1 while
    it is not.
    """

    __slots__ = ("base", "divisor", "dtype", "name", "row", "shape")

    def __init__(self, name: str, dtype: str, divisor: int, shape: Shape) -> None:
        self.name, self.dtype, self.divisor, self.shape = name, dtype, divisor, shape
        self.base = self
        self.row = -1

    def viewed(self, name: str, width: Shape) -> Value:
        """A view of a part of each token's numbers."""
        view = Value(name, self.dtype, self.divisor, (self.shape[0], *width))
        view.base = self.base
        return view


class Adapters:
    """Low-rank adapters on a frozen base: ``adapted`` tells whether a linear layer has one,
    ``merged`` of which rank the one is that is added to a weight before the product, 0 where none
    is. ``dtype``: to which they cast what they are given; ``computed``: in which their products
    run.
    """

    __slots__ = ("adapted", "computed", "dropout", "dtype", "merged", "rank")

    def __init__(
        self,
        rank: int,
        dtype: str,
        computed: str,
        dropout: bool,
        adapted: Callable[[str], bool],
        merged: Callable[[str], int],
    ) -> None:
        self.rank, self.dtype, self.computed, self.dropout, self.adapted, self.merged = (
            rank,
            dtype,
            computed,
            dropout,
            adapted,
            merged,
        )


class Tape:
    """Collects what a forward pass keeps.

    While ``rebuilding``, tensors are such as backward computes again: they are marked so, but,
    ``by_operator``, for some operators' outputs. With ``adapters`` the base's own weights are
    frozen, in compute's dtype, and operations keep nothing for them.
    """

    def __init__(self, run: Layout, how: Implementation, adapters: Adapters | None = None) -> None:
        self.run, self.how, self.adapters = run, how, adapters
        self.frozen = adapters is not None
        self.autocast, self.compute = run.autocast, run.compute
        self.wide = FULL if run.autocast and not self.frozen else run.compute
        self.rows: list[SavedRow] = []
        self.start("none")

    def start(self, recompute: str) -> None:
        """Begin a pass: ``recompute`` is what backward computes again of it."""
        self.rebuilding = False
        self.again = self.run.recompute_modules if recompute == "selective" else ()
        self.by_operator = recompute == "operators"
        self.products = 0

    def take(self) -> tuple[SavedRow, ...]:
        """The rows collected since the last call."""
        rows, self.rows = self.rows, []
        return tuple(rows)

    def keep(self, x: Value) -> None:
        """Keep a tensor, unless it is kept already."""
        x = x.base
        if x.row < 0:
            x.row = len(self.rows)
            self.rows.append((x.name, x.dtype, x.divisor, x.shape, self.rebuilding))
        elif not self.rebuilding and x.row < len(self.rows) and self.rows[x.row][0] == x.name:
            self.rows[x.row] = (
                x.name,
                x.dtype,
                x.divisor,
                x.shape,
                False,
            )  # first met where it would have been computed again

    def keep_always(self, x: Value) -> None:
        """Keep a tensor that is not computed again, whatever is around it: a recomputed region's
        input, an operator's kept output.
        """
        was, self.rebuilding = self.rebuilding, False
        self.keep(x)
        self.rebuilding = was

    def elsewhere(self, x: Value) -> Value:
        """A tensor that another pass keeps."""
        x.row = ELSEWHERE
        return x

    def keep_operator(self, x: Value) -> None:
        """Keep an operator's output where recomputation goes by operator."""
        if self.by_operator:
            self.keep_always(x)

    def region(self, module: str, *inputs: Value) -> bool:
        """Begin a part of a layer that selective recomputation may compute again: it keeps what
        goes in. Returns whether it does.
        """
        again = module in self.again
        if again:
            for x in inputs:
                self.keep(x)
            self.rebuilding = True
        return again

    def entering(self, x: Value) -> Value:
        """What a mixer's first products read: under sequence parallelism ``x`` is gathered from all
        ranks, and kept so or only as this rank's share.
        """
        if x.divisor > 1 and self.how.sequence_input == "kept_whole":
            return Value(f"{x.name}, gathered", x.dtype, 1, x.shape)
        return x

    def leaving(self, x: Value, dropout: bool) -> Value:
        """What a mixer adds to the residual stream."""
        return self.dropout(x, f"{x.name.split()[0]} residual dropout") if dropout else x

    def small(self, name: str, dtype: str, divisor: int, shape: Shape) -> None:
        """Keep a by-product of an operation, such as statistics or indices."""
        self.rows.append((name, dtype, divisor, shape, self.rebuilding))

    def stream(self, name: str, hidden: int) -> Value:
        """The residual stream: what autocast leaves in the weights' own dtype."""
        return Value(name, self.wide, self.run.sequence, (self.run.tokens, hidden))

    def cast(self, x: Value, dtype: str, name: str = "") -> Value:
        """``x`` in another dtype; nothing is kept, and nothing happens where it has that dtype."""
        return (
            x
            if x.dtype == dtype
            else Value(name or f"{x.name} ({dtype})", dtype, x.divisor, x.shape)
        )

    def like(self, x: Value, name: str) -> Value:
        """The result of an operation that keeps nothing and leaves the shape as it is."""
        return Value(name, x.dtype, x.divisor, x.shape)

    def linear(self, x: Value, layer: str, name: str, width: Shape, divisor: int = 1) -> Value:
        """A product with the weight of ``layer``: keeps its input for the weight's gradient.
        Autocast makes a 16-bit copy of the input first.
        """
        if not self.frozen or (self.adapters and self.adapters.merged(layer)):
            self.keep(self.cast(x, self.compute, f"{x.name} (16-bit copy)") if self.autocast else x)
        elif self.adapters and self.adapters.adapted(layer):
            self._adapter(x, self.adapters, layer)
        out = Value(
            name, self.compute if self.autocast else x.dtype, divisor, (self.run.tokens, *width)
        )
        self.products += 1
        if self.products % self.how.kept_product == 1 % self.how.kept_product:
            self.keep_operator(out)
        return out

    def merge(self, layer: str, shape: Shape, dtype: str | None = None) -> None:
        """The sum of a weight of (experts, out, in), or (out, in), and its adapter's product: each
        forward makes it, the layer's product keeps it.

        The two thin matrices of several experts are multiplied in the weight's dtype, into which
        others are copied (PEFT's ParamWrapper).
        """
        rank = self.adapters.merged(layer) if self.adapters else 0
        if self.adapters is None or not rank:
            return
        self.small(
            f"{layer}{MERGED}", dtype or self.compute, self.run.tp if len(shape) > 2 else 1, shape
        )
        if len(shape) > 2 and self.adapters.dtype != self.compute:
            experts, outer, inner = shape
            self.small(
                f"{layer} adapter ({self.compute})",
                self.compute,
                self.run.tp,
                (experts, rank, outer + inner),
            )

    def _adapter(self, x: Value, adapters: Adapters, layer: str) -> None:
        """B(A(dropout(x))): each of the two small products keeps its input, each adapted layer its
        own copy where dtypes differ.
        """
        inner = self.cast(x, adapters.dtype, f"{layer} adapter's input")
        if adapters.dropout:
            inner = self.dropout(inner, f"{layer} adapter's input after dropout")
        self.keep(self.cast(inner, adapters.computed))
        self.small(
            f"{layer} adapter's inner",
            adapters.computed,
            x.divisor,
            (self.run.tokens, adapters.rank),
        )

    def dropout(self, x: Value, name: str) -> Value:
        """Keeps a mask."""
        self.small(f"{name} mask", MASK, x.divisor, x.shape)
        return self.like(x, name)

    def product(self, x: Value, y: Value, name: str) -> Value:
        """An elementwise product: keeps both."""
        self.keep(x)
        self.keep(y)
        return self.like(y, name)

    def scale(self, x: Value, name: str) -> Value:
        """A product with a weight: keeps ``x`` for the weight's gradient."""
        if not self.frozen:
            self.keep(x)
        return self.like(x, name)

    def norm(self, x: Value, name: str, kind: str, out: str, *, weight: bool = True) -> Value:
        """LayerNorm or RMSNorm over the last axis, as its ``kind`` (`NormKind`) computes it.

        The root of ``rms_power`` saves the mean square too; ``rms_fused`` is one kernel whatever
        the implementation.
        """
        axes = x.shape[:-1]
        if kind == "layer_fp32" and self.how.rms_norm != "fused":
            return self._layer_norm_in_steps(x, name, out)
        if kind.startswith("layer"):
            inner = self.cast(x, FULL) if self.autocast else x
            self._normed(inner, name, axes, 2)
            return self.like(inner, out)
        if self.how.rms_norm == "fused" or kind == "rms_fused":
            self._normed(x, name, axes, 1)
            return self.like(x, out)
        inner = self.cast(x, FULL, f"{x.name} (fp32)")
        self._normed(inner, name, axes, 2 if kind == "rms_power" else 1)
        if kind == "rms_squares":
            self.keep(x)
        if not weight:
            return self.cast(self.like(inner, out), x.dtype, out)
        normed = Value(
            f"{name} before its weight",
            FULL if kind in {"rms_fp32", "rms_power"} else x.dtype,
            x.divisor,
            x.shape,
        )
        return self.cast(self.scale(normed, out), x.dtype, out)

    def _layer_norm_in_steps(self, x: Value, name: str, out: str) -> Value:
        """(x - mean) · 1/√(mean of (x - mean)²) · weight, in fp32: the difference is computed
        twice.
        """
        inner = self.cast(x, FULL)
        self.keep(self.like(inner, f"{x.name} less its mean, for the deviation"))
        self._normed(self.like(inner, f"{x.name} less its mean"), name, x.shape[:-1], 1)
        return self.cast(
            self.scale(self.like(inner, f"{name} before its weight"), out), x.dtype, out
        )

    def _normed(self, x: Value, name: str, axes: Shape, statistics: int) -> None:
        self.keep(x)
        if self.how.statistics:
            self.small(f"{name} statistics", FULL, x.divisor, (*axes, statistics))
