"""What counting a model gives: its parameters, and the bytes of its checkpoint."""

from __future__ import annotations

from zerocalc.ledger import record


@record
class StoredBytes:
    """Bytes of a checkpoint's tensors by ``format`` (a quantisation's, or a dtype): by component,
    and by what they are for.

    ``not_quantised`` are of the tensors kept in ``dtype``; ``codebooks`` also shapes and other
    figures of a tensor. ``adapters`` are LoRA's, in a dtype of their own and in no component.
    """

    format: str
    dtype: str
    components: dict[str, int]
    weights: int
    scales: int
    zero_points: int
    indices: int
    codebooks: int
    not_quantised: int
    adapters: int


@record
class Counts:
    """A model's parameters [elements]: ``active`` is what one token passes through,
    ``largest_leaf`` the largest tensor's module.

    ``total`` is the base and its ``adapters``, which are all that LoRA trains. ``stored_bytes`` is
    what the tensors take as a checkpoint keeps them, scales included, adapters in their own dtype;
    ``None`` where that is not known.
    """

    schema_version: int
    total: int
    trainable: int
    active: int
    components: dict[str, int]
    largest_leaf: int
    largest_block: int
    stored_bytes: int | None
    stored: StoredBytes | None
    notes: tuple[str, ...]
    adapters: int = 0
