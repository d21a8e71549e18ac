"""The engine of the programs: what a moment shows of the instants that a program looks at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocalc import Job, estimate
from zerocalc.frameworks.step import Step
from zerocalc.ledger import EMPTY, sums_by_moment
from zerocalc.memory.saved import Saved
from zerocalc.sharding.rank import rank

JOB = Job.model_validate({"model": {"params": 1000}, "cluster": {"gpus": 8}})
FSDP = ("fsdp1", "fsdp2", "torchtitan")


def step() -> Step:
    return Step(JOB, rank(JOB), JOB.framework.stage(3), Saved(EMPTY))


def test_a_moment_shows_its_largest_instant_and_nothing_of_the_others() -> None:
    written = step()
    small = written.hold("small", "buffers", 10, "fp32")
    written.mark("forward")
    written.free(small)
    large = written.hold("large", "buffers", 20, "fp32")
    written.mark("forward")
    written.free(large)
    written.hold("later", "buffers", 5, "fp32")
    written.mark("forward")
    assert [(t.name, t.bytes, t.moments) for t in written.block().terms] == [
        ("large", 80, ("forward",))
    ]


def test_what_is_held_across_moments_is_one_term_and_a_gap_makes_two() -> None:
    written = step()
    held = written.hold("held", "buffers", 10, "fp32")
    written.forward()
    written.mark("forward")
    written.mark("loss")
    written.free(held)
    written.mark("backward_start")
    written.hold("held", "buffers", 10, "fp32")
    written.mark("backward_end")
    assert [t.moments for t in written.block().terms] == [
        ("load", "forward", "loss"),
        ("backward_end",),
    ]


def test_freeing_what_is_not_held_is_an_error_and_nothing_is_nothing() -> None:
    written = step()
    held = written.hold("held", "buffers", 10, "fp32")
    written.free(held, None, written.hold("none of it", "buffers", 0, "fp32"))
    with pytest.raises(KeyError):
        written.free(held)


def test_two_of_the_same_are_two_terms() -> None:
    written = step()
    written.hold("one", "buffers", 10, "fp32")
    written.hold("one", "buffers", 10, "fp32")
    written.mark("step")
    block = written.block()
    assert [t.bytes for t in block.terms] == [40, 40]
    assert sums_by_moment(block.terms)[-1] == 80


def test_nobody_sends_to_nobody() -> None:
    written = step()
    for ranks, elements, calls in ((1, 10, 1), (8, 0, 1), (8, 10, 0)):
        written.send(written.link(ranks), "all_reduce", "gradients", "bf16", elements, calls)
    assert written.collectives == []


@given(
    layers=st.integers(1, 6),
    framework=st.sampled_from(FSDP),
    gpus=st.sampled_from([1, 2, 8]),
    recompute=st.sampled_from(["none", "full"]),
    tied=st.booleans(),
    accumulation=st.integers(1, 3),
)
def test_gathers_and_what_they_hold_agree(
    layers: int, framework: str, gpus: int, recompute: str, tied: bool, accumulation: int
) -> None:
    """However many layers there are: what a gather sends is what a gathered layer holds, shards of
    gradients sum to the row, and a layer more costs more.
    """

    def peak(layers: int) -> int:
        job = Job.model_validate(
            {
                "model": {
                    "kind": "llama",
                    "layers": layers,
                    "hidden": 64,
                    "heads": 4,
                    "ffn": 176,
                    "vocab": 640,
                    "tied_embeddings": tied,
                },
                "cluster": {"gpus": gpus},
                "framework": framework,
                "training": {"seq": 32, "recompute": recompute, "accumulation": accumulation},
            }
        )
        answer = estimate(job, 3)
        terms = answer.memory.gpu.terms
        held = {t.bytes for t in terms if t.name.endswith("gathered layer")}
        sent = {
            c.tensor_bytes
            for c in answer.communication.collectives
            if c.what == "layer weights" and c.op == "all_gather"
        }
        assert held <= sent or gpus == 1
        gradients = sum(t.bytes for t in terms if t.kind == "gradients")
        assert gradients == -(-rank(job).parameters // gpus) * 4 or gpus == 8
        return answer.memory.gpu.peak_bytes

    assert peak(layers) < peak(layers + 1)
