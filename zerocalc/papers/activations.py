"""What the tables of [SP] and [Meg] show: activations by technique, and parameters."""

from __future__ import annotations

from fractions import Fraction

from zerocalc.estimator import estimate
from zerocalc.formulas import published, published_activations
from zerocalc.ledger import record
from zerocalc.model.build import architecture
from zerocalc.model.counting import count_parameters
from zerocalc.model.module import layout
from zerocalc.papers.jobs import MEGATRON_VOCAB, Ours, Recompute, bare, by, gpt, layered


def gpt_parameters(*, layers: int, hidden: int, heads: int, seq: int) -> Ours:
    """Parameters, counted tensor by tensor."""
    value = count_parameters(gpt(layers, hidden, heads, seq)).total
    return Ours(Fraction(value), None)


def gpt_parameters_closed(*, layers: int, hidden: int, heads: int, seq: int) -> Ours:
    """Parameters by [Meg]'s formula, which knows no heads."""
    return by(published.gpt_parameters, layers=layers, hidden=hidden, vocab=MEGATRON_VOCAB, seq=seq)


@record
class Technique:
    """How [SP] cuts or drops activations: tensor and sequence parallelism or neither, and what is
    recomputed.
    """

    tensor: bool
    sequence: bool
    recompute: Recompute


TECHNIQUES = {
    "none": Technique(False, False, "none"),
    "tp": Technique(True, False, "none"),
    "tp+sp": Technique(True, True, "none"),
    "tp+selective": Technique(True, False, "selective"),
    "tp+sp+selective": Technique(True, True, "selective"),
    "full": Technique(True, False, "full"),
}


def saved_by_layer(
    technique: str, *, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> int:
    """Bytes that one layer keeps for backward, summed over the tensors that its modules save."""
    how = TECHNIQUES[technique]
    shape = {
        "layers": 1,
        "hidden": hidden,
        "heads": heads,
        "seq": seq,
        "micro_batch": micro_batch,
        "tp": tp if how.tensor else 1,
    }
    job = layered(shape, how.sequence, how.recompute)
    arch = architecture(job.model, layout(job, seq), job.implementation)
    return sum(module.kept_bytes for module in arch.layer) if arch else 0


def closed_layer(
    technique: str, *, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> int:
    """The same by [SP]'s formula."""
    formula, more = published_activations.LAYER[technique]
    given = {"heads": heads, "tensor_parallel": tp}
    return formula(
        seq=seq, micro_batch=micro_batch, hidden=hidden, **{name: given[name] for name in more}
    )


def layer_activations(
    *, technique: str, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> Ours:
    """Bytes kept by one layer, the modules' tensors beside the closed form."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": tp}
    counted = saved_by_layer(technique, **shape)
    return Ours(
        Fraction(counted),
        published_activations.LAYER[technique][0].text,
        Fraction(closed_layer(technique, **shape)),
    )


def layer_share(
    *, technique: str, hidden: int, heads: int, seq: int, micro_batch: int, tp: int
) -> Ours:
    """A layer's activations over those under tensor parallelism alone."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": tp}
    return Ours(Fraction(saved_by_layer(technique, **shape), saved_by_layer("tp", **shape)), None)


def first_stage_activations(
    *,
    technique: str,
    layers: int,
    hidden: int,
    heads: int,
    seq: int,
    micro_batch: int,
    tp: int,
    pp: int,
    interleave: int,
) -> Ours:
    """Bytes of all layers' activations on the first pipeline stage, embedding and output aside."""
    formula = published_activations.first_stage_layers
    held = (
        formula(layers=layers, pipeline_parallel=pp, interleave=interleave)
        if interleave > 1
        else layers
    )
    layer = saved_by_layer(
        technique, hidden=hidden, heads=heads, seq=seq, micro_batch=micro_batch, tp=tp
    )
    return Ours(
        layer * Fraction(held).limit_denominator(pp * interleave),
        f"A·{formula.text}" if interleave > 1 else "A·L",
    )


def megatron_states(*, layers: int, hidden: int, tp: int, pp: int) -> Ours:
    """Bytes of model states per GPU at 18 per parameter of the layers, one replica."""
    count = published.transformer_parameters(layers=layers, hidden=hidden)
    job = bare(count, tp * pp, recipe="megatron", parallel={"tp": tp, "pp": pp})
    return Ours(Fraction(estimate(job, 0).memory.gpu.states_bytes), "⌈12·L·h²/(t·p)⌉·18")


def selective_saving(*, hidden: int, heads: int, seq: int, micro_batch: int) -> Ours:
    """Share of a layer's activations that selective recomputation drops, counted over tensors."""
    shape = {"hidden": hidden, "heads": heads, "seq": seq, "micro_batch": micro_batch, "tp": 1}
    kept, whole = saved_by_layer("tp+selective", **shape), saved_by_layer("none", **shape)
    return Ours(1 - Fraction(kept, whole), published_activations.selective_saving.text)


def selective_overhead(*, layers: int, hidden: int, seq: int) -> Ours:
    """FLOPs that selective recomputation adds, as a share."""
    return by(
        published_activations.selective_overhead,
        seq=seq,
        hidden=hidden,
        vocab=MEGATRON_VOCAB,
        layers=layers,
    )


QUANTITIES = (
    gpt_parameters,
    gpt_parameters_closed,
    layer_activations,
    layer_share,
    first_stage_activations,
    megatron_states,
    selective_saving,
    selective_overhead,
)
"""What a table's file can name."""
