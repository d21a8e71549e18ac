"""The loss: the tensors as large as the logits that it needs, as data."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from zerocalc.quantities import Whole
from zerocalc.spec.base import FieldError, Spec


class LossRow(Spec):
    """One tensor of the loss."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the term."""
    of: Literal["logits", "chunk", "hidden", "weight"] = "logits"
    """Its shape: that of the logits, of one chunk of them, of the hidden states or of the head's
    weight. Default: logits.
    """
    dtype: Literal["compute", "fp32"]
    """Its dtype: fp32, or the recipe's compute dtype."""
    moments: tuple[Literal["forward", "loss"], ...]
    """The moments at which it is alive."""
    when: Literal["always", "trained", "frozen", "16-bit"] = "always"
    """When it exists: always, with a trained or a frozen head, or with logits computed in 16 bits,
    of which an fp32 copy is another tensor.
    """


class Loss(Spec):
    """How a loss is computed from the last hidden states: its tensors, and the chunks of tokens."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the loss."""
    title: Annotated[str, Field(max_length=200)] = ""
    """Description in words, for tables. Default: none."""
    source: Annotated[str, Field(max_length=2000)]
    """Where its tensors were read."""
    chunks: Whole = 1
    """Equal chunks into which the tokens are divided. Default: 1."""
    by_width: StrictBool = False
    """Whether the number of chunks follows from vocabulary and hidden size, as in Liger's kernel,
    instead of ``chunks``. Default: no.
    """
    rows: Annotated[tuple[LossRow, ...], Field(min_length=1, max_length=20)]
    """The tensors."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        chunked = any(row.of == "chunk" for row in self.rows)
        if chunked != (self.chunks > 1 or self.by_width):
            raise FieldError(
                "loss.rows",
                "need one of a chunk if chunks is above 1 or by_width is true, and none otherwise",
            )
        return self
