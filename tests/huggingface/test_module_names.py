"""Lists of modules' names in quantised configs: which linear layers they mean, and which lists are
refused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc.huggingface.module_names import WITHIN, Names, NamesError
from zerocalc.model.checkpoint_bytes import LINEAR


def test_every_linear_layer_has_names() -> None:
    assert set(WITHIN) == LINEAR - {"head"}


def test_names_are_read_as_transformers_reads_them() -> None:
    assert Names(["gate"]).layers("router", 2) == {0, 1}
    assert Names(["gate"]).layers("mlp.gate", 2) == set()  # gate_proj is another name
    assert Names(["model.layers.1"]).layers("mlp.up", 12) == {1}  # not layer 11
    assert Names(["model.layers.*.self_attn"]).layers("attention.q", 3) == {0, 1, 2}
    assert Names(["re:.*mlp.gate$"], marked=True).layers("router", 2) == {0, 1}
    assert Names(["re:.*mlp.gate$"], marked=True).layers("mlp.gate", 2) == set()
    assert Names([f"re:model.layers.{i}.mlp.*" for i in range(0, 126, 2)], marked=True).layers(
        "mlp.up", 126
    ) == set(range(0, 126, 2))


@pytest.mark.parametrize("name", ["x" * 301, "(a+)+b", "a*b*c*d*e*f", "(a", r"(a)b\1", "(?P<x>a)"])
def test_names_that_are_not_read(name: str) -> None:
    with pytest.raises(NamesError):
        Names([f"re:{name}"], marked=True)


@given(text=st.text(max_size=40), marked=st.booleans())
def test_any_text_is_a_name_or_refused(text: str, marked: bool) -> None:
    said = ""
    try:
        assert Names([text, f"re:{text}"], marked=marked).layers("attention.q", 3) <= {0, 1, 2}
    except NamesError as error:
        said = str(error)
    assert "\n" not in said
