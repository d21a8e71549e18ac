"""What must hold for every job: sums are sums, stages only ever save, and one answer is the other's
input.
"""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.running import run
from tests.strategies import FEW, Table, architectures, jobs, tables
from zerocalc.answers.document import plain, to_json
from zerocalc.answers.planner import plan
from zerocalc.estimator import estimate
from zerocalc.formulas.states import whole_bytes
from zerocalc.ledger import (
    ACTIVATION_KINDS,
    GATHERED,
    MOMENTS,
    STATE_KINDS,
    Kind,
    Moment,
    Term,
    Tier,
    block,
    join,
    replaced,
    span,
    term,
)
from zerocalc.results import Estimate
from zerocalc.schedule import NETWORK_FABRICS, OPERATIONS, Collective
from zerocalc.sharding.rank import rank
from zerocalc.spec.job import Job
from zerocalc.spec.recipe import DTYPE_BYTES

STAGES = (0, 1, 2, 3)


def four(job: Job) -> list[Estimate]:
    return [estimate(job, stage) for stage in STAGES]


def changed(table: Table, path: str, value: Any) -> Job:
    """The job of ``table`` with one field set."""
    part, field = path.split(".")
    return Job.model_validate({**table, part: {**table[part], field: value}})


def total(answer: Estimate, *kinds: str) -> int:
    return sum(t.bytes for t in answer.memory.gpu.terms if t.kind in kinds)


def data_parallel(answer: Estimate) -> list[Collective]:
    return [c for c in answer.communication.collectives if c.group == "dp"]


def rows(job: Job) -> int:
    return len(job.recipe.rows)


# Sums.


@given(jobs())
def test_every_total_is_the_sum_of_its_entries(job: Job) -> None:
    for answer in four(job):
        gpu = answer.memory.gpu
        kept = [t for t in gpu.terms if t.kind != "fragmentation"]
        assert gpu.moments == {
            moment: sum(t.bytes for t in kept if moment in t.moments) for moment in MOMENTS
        }
        assert gpu.states_bytes == total(answer, *STATE_KINDS)
        assert gpu.peak_bytes == max(gpu.moments.values()) == gpu.moments[gpu.peak_moment]
        at = gpu.at_peak
        assert at.states_bytes + at.activations_bytes + at.other_bytes == gpu.peak_bytes
        assert at.states_bytes == sum(
            t.bytes for t in kept if gpu.peak_moment in t.moments and t.kind in STATE_KINDS
        )
        assert at.activations_bytes == sum(
            t.bytes for t in kept if gpu.peak_moment in t.moments and t.kind in ACTIVATION_KINDS
        )
        assert gpu.reserved_bytes == gpu.peak_bytes + total(answer, "fragmentation")
        host = answer.memory.cpu
        assert host is None or host.bytes_per_node == sum(t.bytes for t in host.terms)
        traffic = answer.communication
        assert traffic.sent_bytes_per_gpu == sum(
            c.sent_bytes for c in traffic.collectives if c.fabric in NETWORK_FABRICS
        )
        assert traffic.host_bytes_per_gpu == sum(
            c.sent_bytes for c in traffic.collectives if c.fabric == "pcie"
        )
        moved = sum(
            OPERATIONS[c.op].volume * c.tensor_bytes * c.count // DTYPE_BYTES[c.dtype]
            for c in data_parallel(answer)
        )
        assert traffic.volume_params == moved / rank(job).parameters


@given(jobs())
def test_every_entry_is_what_its_formula_gives(job: Job) -> None:
    for answer in four(job):
        host = answer.memory.cpu.terms if answer.memory.cpu else ()
        for entry in (*answer.memory.gpu.terms, *host):
            assert entry.bytes == entry.formula(**entry.inputs)
            assert entry.bytes >= 0
            assert entry.source
            assert entry.moments == span(entry.moments[0], entry.moments[-1])
        for call in answer.communication.collectives:
            assert call.sent_bytes == call.formula(**call.inputs)
            assert call.count > 0
            assert call.ranks > 1 or call.group == "host"


@given(jobs())
def test_fragmentation_is_a_share_of_what_comes_and_goes(job: Job) -> None:
    for answer in four(job):
        lost, gpu = total(answer, "fragmentation"), answer.memory.gpu
        if job.zero.defragment:
            assert lost == 0
        at_peak = sum(
            t.bytes
            for t in gpu.terms
            if gpu.peak_moment in t.moments
            and t.kind not in {"weights", "optimizer", "runtime", "fragmentation"}
        )
        assert lost == pytest.approx(job.zero.fragmentation_fraction * at_peak, rel=1e-12, abs=1)


# Stages and N_d.


@given(jobs())
def test_states_fall_with_the_stage(job: Job) -> None:
    broadcast = job.zero.gather == "broadcast"
    states = [answer.memory.gpu.states_bytes for answer in four(job)]
    for lower, higher in pairwise(
        states[:3] if broadcast else states
    ):  # the fullest owner of whole blocks may hold more than a shard
        assert higher <= lower
    assert states[3] <= states[0] or broadcast


@given(tables(), st.integers(2, 50))
def test_states_fall_with_n_d_and_not_at_all_at_stage_0(table: Table, factor: int) -> None:
    few = Job.model_validate(table)
    many = changed(table, "cluster.gpus", table["cluster"]["gpus"] * factor)
    for before, after in zip(four(few), four(many), strict=True):
        if before.stage == 0:
            assert after.memory.gpu.states_bytes == before.memory.gpu.states_bytes
        else:
            # Whole blocks are rounded up block by block, of which one rank owns several.
            owned = few.model.blocks or 0 if few.zero.gather == "broadcast" else 0
            assert (
                after.memory.gpu.states_bytes
                <= before.memory.gpu.states_bytes + 8 * rows(few) * owned
            )
        for kind in (
            "activations",
            "checkpoints",
            "logits",
        ):  # more data-parallel ranks never shrink these
            assert total(before, kind) == total(after, kind)


@given(jobs())
def test_stage_3_times_n_d_is_stage_0_up_to_padding(job: Job) -> None:
    assume(
        job.zero.gather == "all-gather"
        and not (job.zero.defer_grad_sync and job.training.accumulation > 1)
    )
    whole, sharded = (
        estimate(job, 0).memory.gpu.states_bytes,
        estimate(job, 3).memory.gpu.states_bytes,
    )
    padding = sharded * job.shards - whole
    assert 0 <= padding <= job.shards * rows(job) * 8


@given(jobs(shards=1))
def test_one_rank_makes_all_stages_equal_and_sends_nothing(job: Job) -> None:
    answers = four(job)
    for answer in answers:
        assert plain(answer.memory) == plain(answers[0].memory)
        assert data_parallel(answer) == []
        assert answer.communication.volume_params == 0
        assert answer.communication.ratio_to_dp is None
        assert total(answer, "buffers", "gathered") == 0


@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
@FEW
@given(params=st.integers(10**6, 10**12), gpus=st.integers(2, 10**6))
def test_sent_bytes_approach_the_papers_volume(
    stage: int, passes: int, params: int, gpus: int
) -> None:
    """Elements sent per rank tend to 2Ψ, 2Ψ, 2Ψ, 3Ψ: (N−1)/N of that on a ring of N, rounded up a
    byte a call.
    """
    answer = estimate(
        Job.model_validate({"model": {"params": params}, "cluster": {"gpus": gpus}}), stage
    )
    sent = answer.communication.sent_bytes_per_gpu
    calls = sum(c.count for c in answer.communication.collectives)
    exact = passes * 2 * params * (gpus - 1) / gpus
    assert exact * (1 - 1e-12) <= sent <= exact * (1 + 1e-12) + calls
    assert answer.communication.volume_params == passes


@given(jobs())
def test_volume_by_stage(job: Job) -> None:
    assume(job.shards > 1)
    own = rank(job)
    trained, times = own.trainable / own.parameters, job.training.accumulation
    reductions = 1 if job.zero.defer_grad_sync else times
    stage_1 = 3 if job.zero.grad_sync == "all-reduce" else 2
    expected = [2 * trained, stage_1 * trained, (reductions + 1) * trained]
    for answer, volume in zip(four(job), expected, strict=False):
        assert answer.communication.volume_params == pytest.approx(volume, rel=1e-12)
    gathered = sum(unit.elements * unit.count for unit in own.units) / own.parameters
    reduced = gathered if own.trainable == own.parameters else trained
    assert estimate(job, 3).communication.volume_params == pytest.approx(
        2 * times * gathered + reductions * reduced, rel=1e-12
    )


# Units: memory and traffic read one list.


@given(jobs())
def test_units_sum_to_the_ranks_parameters(job: Job) -> None:
    own = rank(job)
    units = sum(unit.elements * unit.count for unit in own.units)
    assert own.parameters <= units <= own.parameters + len(own.units)


@given(jobs())
def test_gathered_memory_is_what_the_gathers_bring(job: Job) -> None:
    answer = estimate(job, 3)
    assume(job.shards > 1 and GATHERED not in answer.memory.gpu.unknown)
    op = "broadcast" if job.zero.gather == "broadcast" else "all_gather"
    size = {
        c.what.removesuffix(" weights"): c.tensor_bytes
        for c in data_parallel(answer)
        if c.op == op and c.moment == "forward"
    }
    calls: dict[str, int] = {}
    for c in data_parallel(answer):
        if c.op == op and c.moment == "forward":
            calls[c.what.removesuffix(" weights")] = (
                calls.get(c.what.removesuffix(" weights"), 0) + c.count
            )
    in_flight = 0
    for entry in (t for t in answer.memory.gpu.terms if t.kind == "gathered"):
        unit, units = entry.name.removeprefix("gathered "), int(entry.inputs["units_in_flight"])
        unit = unit if unit in size else unit.removesuffix("s")
        tensors = {
            c.tensor_bytes
            for c in data_parallel(answer)
            if c.op == op and c.what == f"{unit} weights"
        }
        assert entry.bytes in {tensor * units for tensor in tensors}
        if unit in {"layer", "block"}:
            in_flight += units
            assert units <= calls[unit]
        else:
            assert units == 1
    layers = sum(unit.count for unit in rank(job).units if unit.place == "layer")
    assert in_flight == min(job.framework.units_in_flight, layers)


@given(jobs())
def test_both_gathers_bring_all_weights(job: Job) -> None:
    assume(job.shards > 1)
    answer, size = estimate(job, 3), DTYPE_BYTES[job.recipe.gather]
    for phase in ("forward", "backward"):
        calls = [
            c for c in data_parallel(answer) if c.moment == phase and c.what.endswith("weights")
        ]
        elements = sum(c.tensor_bytes * c.count for c in calls) // size
        assert rank(job).parameters * job.training.accumulation <= elements
        assert elements <= (rank(job).parameters + len(rank(job).units)) * job.training.accumulation


# One answer is the other's input.


@given(jobs(by_stage=True))
def test_dump_and_validate_give_the_same_job(job: Job) -> None:
    assert Job.model_validate(job.model_dump(mode="json")) == job
    assert Job.model_validate_json(job.model_dump_json()) == job


@settings(max_examples=25)
@given(jobs(by_stage=True))
def test_json_is_a_job_file_for_the_same_json(job: Job) -> None:
    whole = to_json(plan(job)) + "\n"
    again = run("plan", "--job", "-", "--json", stdin=whole)
    assert (again.status, again.err) == (0, "")
    assert again.out == whole
    job_alone = run("plan", "--job", "-", "--json", stdin=job.model_dump_json())
    assert job_alone.out == whole


@given(jobs(by_stage=True))
def test_a_verdict_agrees_with_its_candidates(job: Job) -> None:
    answer = plan(job)
    usable = job.cluster.usable_bytes
    for candidate in answer.candidates:
        gpu = candidate.memory.gpu
        if usable is None:
            assert candidate.fits is None
        elif max(gpu.reserved_bytes, gpu.states_bytes) > usable:
            assert candidate.fits is False
        else:
            assert candidate.fits is (None if gpu.unknown else True)
    fits = [c.fits for c in answer.candidates]
    assert answer.verdict == (
        "fits" if True in fits else "unknown" if None in fits else "does_not_fit"
    )
    assert (answer.recommended is None) == (usable is None or set(fits) == {False})
    if answer.recommended is not None:
        assert answer.recommended.name in {c.name for c in answer.candidates if c.fits is not False}
        assert answer.recommended.why


@given(jobs())
def test_nothing_unknown_is_taken_as_zero(job: Job) -> None:
    for answer in four(job):
        known = not job.model.is_bare and job.training.seq
        assert ("activations" in answer.memory.gpu.unknown) is not bool(known)
        if not known:
            assert total(answer, "activations", "checkpoints", "logits") == 0
            assert answer.fits is not True


# More of anything never costs less.


@pytest.mark.parametrize(
    "path", ["training.seq", "training.micro_batch", "model.layers", "model.hidden", "model.vocab"]
)
@FEW
@given(table=tables(bare=False, with_seq=True), times=st.integers(2, 3))
def test_memory_grows_with_the_work(path: str, table: Table, times: int) -> None:
    """Twice the tokens, layers or width never take less; the same run otherwise."""
    part, field = path.split(".")
    table = deepcopy(table)
    table["model"].pop("trainable", None)
    table["model"].pop("head_dim", None)
    table["model"].pop("ffn", None)
    if table["model"]["kind"] == "gpt2":
        table["model"]["positions"] = 4 * 4096
    if table["parallel"]["pp"] > 1:
        table["parallel"].setdefault("pipeline_stage", 1)  # the worst stage may be another one then
    small, large = Job.model_validate(table), changed(table, path, table[part][field] * times)
    for before, after in zip(four(small), four(large), strict=True):
        assert after.memory.gpu.peak_bytes >= before.memory.gpu.peak_bytes
        assert after.memory.gpu.states_bytes >= before.memory.gpu.states_bytes
        assert after.communication.sent_bytes_per_gpu >= before.communication.sent_bytes_per_gpu
        for moment in MOMENTS:
            assert after.memory.gpu.moments[moment] >= before.memory.gpu.moments[moment]


@given(tables(bare=False, with_seq=True))
def test_recomputation_only_saves_what_is_kept(table: Table) -> None:
    table["zero"]["partition_activations"] = table["zero"]["cpu_checkpointing"] = False
    # Under autocast rotated queries and keys are fp32, which is what recomputed attention keeps:
    # more than the kernel's 16-bit copies.
    assume(table.get("recipe") != "autocast")

    def kept(recompute: str) -> int:
        gpu = estimate(changed(table, "training.recompute", recompute), 0).memory.gpu
        return sum(
            t.bytes
            for t in gpu.terms
            if t.kind in {"activations", "checkpoints"} and t.moments[0] == "forward"
        )

    assert kept("full") <= kept("selective") <= kept("none")


# Activations against the closed forms of [SP].


@given(
    layers=st.integers(1, 8),
    heads=st.sampled_from([4, 8, 16]),
    head_dim=st.sampled_from([16, 64]),
    seq=st.sampled_from([32, 128, 1000]),
    micro_batch=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    selective=st.booleans(),
)
@example(
    layers=1,
    heads=4,
    head_dim=16,
    seq=32,
    micro_batch=1,
    tp=1,
    sequence_parallel=False,
    selective=False,
)
def test_layers_save_what_the_paper_says(
    layers: int,
    heads: int,
    head_dim: int,
    seq: int,
    micro_batch: int,
    tp: int,
    sequence_parallel: bool,
    selective: bool,
) -> None:
    """[SP] §4: sbh·(34 + 5as/h); under TP 10 + 24/t + 5as/(ht); all over t with SP; selective
    recomputation drops 5as/h.
    """
    assume(tp > 1 or not sequence_parallel)
    job = Job.model_validate(
        {
            "model": {"kind": "gpt2", "layers": layers, "hidden": heads * head_dim, "heads": heads},
            "cluster": {"gpus": tp},
            "training": {
                "seq": seq,
                "micro_batch": micro_batch,
                "attention": "eager",
                "recompute": "selective" if selective else "none",
            },
            "parallel": {"tp": tp, "sequence_parallel": sequence_parallel},
        }
    )
    sbh, scores = (
        seq * micro_batch * heads * head_dim,
        0 if selective else 5 * heads * seq * seq * micro_batch,
    )
    whole = 34 * sbh + scores
    layer = whole // tp if sequence_parallel or tp == 1 else 10 * sbh + (24 * sbh + scores) // tp
    terms = estimate(job, 0).memory.gpu.terms
    assert (
        sum(
            t.bytes
            for t in terms
            if t.name in {"attention activations", "mlp activations", "norms activations"}
        )
        == layers * layer
    )


@given(architectures(frozen=False), st.integers(8, 512), st.booleans())
def test_tensors_sum_to_terms(model: Table, seq: int, eager: bool) -> None:
    """What `explain` lists tensor by tensor is what the ledger counts."""
    job = Job.model_validate(
        {
            "model": model,
            "cluster": {"gpus": 1},
            "training": {"seq": seq, "attention": "eager" if eager else "flash"},
            "recipe": "mixed-adam",
        }
    )
    arch = rank(job).arch
    assert arch is not None
    listed = sum(tensor.bytes for module in arch.layer for tensor in module.saved) * arch.layers
    terms = estimate(job, 0).memory.gpu.terms
    assert listed == sum(
        t.bytes for t in terms if t.kind == "activations" and t.inputs.get("layers")
    )
    modules = (*arch.before, *arch.layer * arch.layers, *arch.after)
    total = sum(math.prod(row.shape) for m in modules for row in m.parameter_rows)
    assert arch.parameters == total == rank(job).total


# Blocks.

SPANS = [(first, last) for i, first in enumerate(MOMENTS) for last in MOMENTS[i:]]
KINDS: tuple[Kind, ...] = (
    *("weights", "gradients", "optimizer", "copies", "activations", "checkpoints"),
    *("logits", "buffers", "gathered", "runtime", "fragmentation"),
)
TIERS: tuple[Tier, ...] = ("gpu", "cpu", "nvme")


@st.composite
def terms(draw: st.DrawFn) -> Term:
    first, last = draw(st.sampled_from(SPANS))
    made = term(
        "a",
        draw(st.sampled_from(KINDS)),
        span(first, last),
        whole_bytes,
        parameters=draw(st.integers(0, 10**15)),
        bytes_per_parameter=1,
    )
    return replaced(made, tier=draw(st.sampled_from(TIERS)))


@given(st.lists(st.lists(terms(), max_size=5), max_size=5))
def test_a_ledger_is_the_union_of_its_blocks(lists: list[list[Term]]) -> None:
    blocks = [block(entries) for entries in lists]
    ledger = join(blocks)
    everything = [entry for entries in lists for entry in entries]
    assert list(ledger.terms) == everything
    assert ledger.sums == tuple(sum(part.sums[i] for part in blocks) for i in range(len(MOMENTS)))

    def counted(moment: Moment) -> int:
        return sum(
            t.bytes
            for t in everything
            if t.tier == "gpu" and t.kind != "fragmentation" and moment in t.moments
        )

    assert ledger.sums == tuple(counted(moment) for moment in MOMENTS)
    assert ledger.peak_bytes == max(ledger.sums) == counted(ledger.peak_moment)
    assert join([block(everything)]).sums == ledger.sums
