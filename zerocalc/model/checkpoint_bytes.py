"""What a checkpoint's tensors take as they are stored: quantised ones with their scales, zero
points and codebooks, exact tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zerocalc.formulas.quantisation import block_bytes, packed_bytes
from zerocalc.ledger import record
from zerocalc.model.architecture import Architecture
from zerocalc.model.module import Component, Module
from zerocalc.spec.base import FieldError
from zerocalc.spec.model import Model
from zerocalc.spec.quantisation import Quantisation

LINEAR = frozenset(
    {
        *("attention.q", "attention.k", "attention.v", "attention.qkv", "attention.out"),
        *("attention.q_down", "attention.q_up", "attention.kv_down", "attention.kv_up"),
        *(
            "mlp.up",
            "mlp.gate",
            "mlp.down",
            "shared.up",
            "shared.gate",
            "shared.down",
            "shared_gate",
        ),
        *("experts.up", "experts.gate", "experts.down", "router", "head"),
    }
)
"""The weights of linear layers that modules of a known type have; a routed expert's stand for those
of all.
"""
PLAIN = frozenset({"attention", "mlp", "experts", "router", "shared experts", "head"})
"""Modules whose linear layers a quantiser meets in a decoder's layers and after them."""

ZERO_POINT_WORD_BYTES = 4
EACH_EXPERT = (
    "each routed expert's matrices quantised on their own; transformers 5 with bitsandbytes "
    "leaves experts in 16 bits"
)
_EXPERT = re.compile(r"^experts\.\d+\.mlp\.")


@record
class Matrix:
    """``count`` equal weights of (``rows`` outputs, ``columns`` inputs), known by ``key``."""

    key: str
    count: int
    rows: int
    columns: int


@record
class Sizes:
    """Bytes of quantised tensors, by what they are for."""

    weights: int
    scales: int
    zero_points: int
    indices: int
    codebooks: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.scales + self.zero_points + self.indices + self.codebooks


@record
class Stored:
    """A whole model as stored: the bytes of what is quantised, and how many parameters are kept as
    they were, in all and by component.
    """

    title: str
    sizes: Sizes
    parameters: int
    kept: int
    quantised_bytes: dict[Component, int]
    kept_parameters: dict[Component, int]
    assumptions: tuple[str, ...]

    def component_bytes(self, bytes_per_parameter: int) -> dict[Component, int]:
        """Bytes by component, what is kept at ``bytes_per_parameter``."""
        return {
            component: size + self.kept_parameters[component] * bytes_per_parameter
            for component, size in self.quantised_bytes.items()
        }


def stored(model: Model, arch: Architecture | None) -> Stored:
    """A quantised model as it is stored. Raises `FieldError` where the format or a module's linear
    layers are not known.
    """
    quantisation = model.quantised
    if quantisation is None or quantisation.bits is None:
        name = quantisation.name if quantisation else "none"
        raise FieldError(
            "model.quantised",
            f"{name} says nothing of bits and scales; name a format, such as nf4 or gptq-4bit",
        )
    if arch is None:
        raise FieldError(
            "model.quantised",
            "needs an architecture: which weights are quantised depends on the layers, and "
            "a number of parameters has none",
        )
    places = [
        *((group, layers, modules) for group, (layers, modules) in enumerate(arch.groups)),
        (None, 1, arch.before),
        (None, 1, arch.after),
    ]
    found: list[tuple[Component, int, Matrix]] = []
    parameters: dict[Component, int] = {}
    for group, layers, modules in places:
        for module in modules:
            component = module.component
            parameters[component] = (
                parameters.get(component, 0) + module.parameter_elements * layers
            )
            for matrix in matrices(module, quantisation.parts == "decoder"):
                if quantisation.parts != "experts" or matrix.key.startswith("experts."):
                    found.append(
                        (
                            component,
                            matrix.count
                            * (layers - kept_layers(quantisation, matrix.key, layers, group)),
                            matrix,
                        )
                    )
    if not any(times for _, times, _ in found):
        what = "routed experts" if quantisation.parts == "experts" else "linear layers"
        raise FieldError(
            "model.quantised", f"{quantisation.name} quantises {what}, of which the model has none"
        )
    return _summed(quantisation, found, parameters)


def _summed(
    quantisation: Quantisation,
    found: list[tuple[Component, int, Matrix]],
    parameters: dict[Component, int],
) -> Stored:
    """Matrices, each so many times, and what is left of the parameters of each component."""
    each = [
        (
            component,
            times,
            matrix.rows * matrix.columns,
            matrix_bytes(quantisation, matrix.rows, matrix.columns),
        )
        for component, times, matrix in found
    ]
    quantised = {
        one: sum(times * amount for component, times, amount, _ in each if component == one)
        for one in parameters
    }
    kept = {one: parameters[one] - quantised[one] for one in parameters}
    sizes = Sizes(
        weights=sum(times * size.weights for _, times, _, size in each),
        scales=sum(times * size.scales for _, times, _, size in each),
        zero_points=sum(times * size.zero_points for _, times, _, size in each),
        indices=sum(times * size.indices for _, times, _, size in each),
        codebooks=sum(times * size.codebooks for _, times, _, size in each),
    )
    by_component = {
        one: sum(times * size.total for component, times, _, size in each if component == one)
        for one in parameters
    }
    experts = quantisation.parts != "experts" and any(
        times and matrix.key.startswith("experts.") for _, times, matrix in found
    )
    title = quantisation.title or quantisation.name
    return Stored(
        title,
        sizes,
        sum(quantised.values()),
        sum(kept.values()),
        by_component,
        kept,
        (EACH_EXPERT,) if experts else (),
    )


def kept_layers(quantisation: Quantisation, key: str, layers: int, group: int | None) -> int:
    """In how many of a group's layers a weight is kept as it was."""
    kept = quantisation.kept.get(key, False)
    if isinstance(kept, bool):
        return layers if kept else 0
    return min(kept[group], layers) if group is not None and group < len(kept) else 0


def matrices(module: Module, decoder: bool) -> Iterator[Matrix]:
    """The weights of a module's linear layers, every expert's its own.

    ``decoder``: raise `FieldError` where the module is none of a plain decoder's.
    """
    rows: list[tuple[str, tuple[int, ...]]] = [
        (_key(module, name), shape)
        for name, shape, linear in module.parameter_rows
        if linear and 0 not in shape
    ]
    rows = [(key, shape) for key, shape in rows if key not in module.unquantised]
    unknown = [key for key, _ in rows if key not in LINEAR]
    if decoder and rows and (unknown or module.name not in PLAIN):
        raise FieldError(
            "model.quantised",
            f"is not counted yet for the model's {module.name}: which of its tensors are "
            "quantised is not known",
        )
    shapes = dict(rows)
    for key, shape in rows:
        out, inner = (shape[-1], shape[-2]) if module.transposed else (shape[-2], shape[-1])
        if len(shape) == 2:
            yield Matrix(key, 1, out, inner)
        elif key == "experts.up" and out == 2 * _width(shapes["experts.down"], module.transposed):
            yield Matrix("experts.gate", shape[0], out // 2, inner)
            yield Matrix("experts.up", shape[0], out // 2, inner)
        else:
            yield Matrix(key, shape[0], out, inner)


def _key(module: Module, name: str) -> str:
    """What a weight is known by: its name, an expert's without its number, a shared expert's apart
    from a plain MLP's.
    """
    key = _EXPERT.sub("experts.", name).removesuffix(".weight")
    return key.replace("mlp.", "shared.", 1) if module.name == "shared experts" else key


def _width(down: tuple[int, ...], transposed: bool) -> int:
    """The inner size of experts, from what comes down from it."""
    return down[-2] if transposed else down[-1]


def matrix_bytes(q: Quantisation, rows: int, columns: int) -> Sizes:
    """Bytes of one weight of (``rows`` outputs, ``columns`` inputs)."""
    bits = q.bits or 0
    if q.packed == "flat":
        rows, columns, inputs = 1, rows * columns, columns
    else:
        inputs = columns
    lines, length = (columns, rows) if q.packed == "columns" else (rows, columns)
    block_columns, block_rows = q.scale_columns or columns, q.scale_rows or rows
    scales = block_bytes(
        rows=rows,
        block_rows=block_rows,
        columns=columns,
        block_columns=block_columns,
        bytes_per_block=q.scale_bytes,
    )
    if q.nested:
        blocks = block_bytes(
            rows=rows,
            block_rows=block_rows,
            columns=columns,
            block_columns=block_columns,
            bytes_per_block=1,
        )
        scales += block_bytes(
            rows=1,
            block_rows=1,
            columns=blocks,
            block_columns=q.nested,
            bytes_per_block=q.nested_bytes,
        )
    zero_points = 0
    if q.zero_points:
        groups = block_bytes(
            rows=1, block_rows=1, columns=columns, block_columns=block_columns, bytes_per_block=1
        )
        zero_points = packed_bytes(
            length=rows, bits=bits, word_bytes=ZERO_POINT_WORD_BYTES, lines=groups
        )
    weights = packed_bytes(length=length, bits=bits, word_bytes=q.word_bytes, lines=lines)
    return Sizes(weights, scales, zero_points, inputs * q.index_bytes, q.tensor_bytes)
