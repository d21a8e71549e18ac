"""The loss: which tensors of the logits' size exist around it, as data."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec


class LossRow(Spec):
    """One tensor: as large as the ``logits`` (or one ``chunk`` of them), the ``hidden`` states or
    the head's ``weight``.

    ``when``: only where the head's weight is trained or is frozen, or only where logits are
    computed in 16 bits: an fp32 copy is another tensor then.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    of: Literal["logits", "chunk", "hidden", "weight"] = "logits"
    dtype: Literal["compute", "fp32"]
    moments: tuple[Literal["forward", "loss"], ...]
    when: Literal["always", "trained", "frozen", "16-bit"] = "always"


class Loss(Spec):
    """How logits become a loss. ``chunks``: into how many parts the tokens are cut; ``by_width``:
    into as many as Liger's kernel does.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    title: Annotated[str, Field(max_length=200)] = ""
    source: Annotated[str, Field(max_length=2000)]
    chunks: Whole = 1
    by_width: StrictBool = False
    rows: Annotated[tuple[LossRow, ...], Field(min_length=1, max_length=20)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        chunked = any(row.of == "chunk" for row in self.rows)
        if chunked != (self.chunks > 1 or self.by_width):
            raise FieldError(
                "loss.rows", "speak of a chunk just where chunks is above 1 or by_width is true"
            )
        return self
