"""What leaves the GPU arrives elsewhere: recorded runs, published figures, properties, and what is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import refused, run_line
from tests.strategies import tables
from zerocalc import Estimate, Job, estimate, plan, presets
from zerocalc.formulas.offload import page_locked
from zerocalc.frameworks.flat_buffer import touched_elements
from zerocalc.ledger import MOMENTS, STATE_KINDS, Term
from zerocalc.sharding.rank import rank

FILE = json.loads((Path(__file__).parent / "data" / "offload_runs.json").read_text("utf-8"))
RUNS: list[dict[str, Any]] = FILE["runs"]
MOMENT_ROWS = ("first moment", "second moment")
WINDOWS = {"live parameters", "gradient being computed", "fp32 gradients of a sub-group"}
"""What comes and goes between the moments that were recorded."""


def job_of(run: dict[str, Any]) -> Job:
    table = {
        "model": FILE["model"],
        "cluster": {"gpus": FILE["gpus"], "gpus_per_node": 1},
        "framework": "deepspeed",
        "zero": run["zero"],
    }
    return Job.model_validate({**table, "training": {"accumulation": run["accumulation"]}})


def everywhere(of: Estimate) -> list[Term]:
    return [
        t
        for tier in (of.memory.gpu, of.memory.cpu, of.memory.nvme)
        if tier
        for t in tier.terms
        if t.kind != "fragmentation"
    ]


def bare_name(entry: Term) -> str:
    return entry.name.removesuffix(" on the CPU").removesuffix(" on NVMe")


@pytest.mark.parametrize("run", RUNS, ids=[run["name"].replace(" ", "-") for run in RUNS])
def test_what_is_held_is_what_was_recorded(run: dict[str, Any]) -> None:
    job = job_of(run)
    held: dict[str, int] = {}
    for entry in everywhere(estimate(job)):
        if entry.bytes and {"backward_end", "step"} & set(entry.moments):
            name = "moments" if bare_name(entry) in MOMENT_ROWS else bare_name(entry)
            held[name] = held.get(name, 0) + entry.bytes
    if (
        "summed gradients" in held
    ):  # ours are those of the rank with most of them, what was recorded is rank 0's
        assert held["summed gradients"] == 2 * max(touched_elements(job, rank(job)))
        held["summed gradients"] = 2 * touched_elements(job, rank(job))[0]
    for name, recorded in run["held"].items():
        if (
            name == "gradients"
        ):  # stage 2 without offload: whole tensors, which framework_memory.json pins
            continue
        own = held.get(
            name, held.get("gradients", 0) if name == "gradient buffer" else 0
        )  # stage 3 without offload: the recipe's own row
        assert 0 <= recorded - own <= 1024, name


@pytest.mark.parametrize(
    "run",
    [run for run in RUNS if run["zero"].get("offload_optimizer")],
    ids=lambda run: run["name"].replace(" ", "-"),
)
def test_the_host_holds_18_bytes_per_parameter(run: dict[str, Any]) -> None:
    answer = estimate(job_of(run))
    share = FILE["parameters"] // FILE["gpus"]
    host = answer.memory.cpu
    assert host is not None
    per_parameter = 18 + (2 if run["zero"].get("offload_params") else 0)
    extra = 2 * FILE["largest_tensor"] if run["zero"]["stage"] < 3 else 0
    added_up = sum(t.bytes for t in host.terms if t.name == "summed gradients on the CPU")
    assert host.bytes_per_node == per_parameter * share + extra + added_up
    assert host.bytes_per_node < host.high_bytes_per_node < 2 * host.bytes_per_node


@pytest.mark.parametrize(
    ("stage", "of"), [(1, "stages 1 and 2"), (2, "stages 1 and 2"), (3, "stage 3")]
)
def test_what_crosses_the_host_link(stage: int, of: str) -> None:
    run = next(
        run
        for run in RUNS
        if run["zero"] | {"reduce_bucket_size": 0}
        == {
            "stage": stage,
            "persistence_threshold": 0,
            "offload_optimizer": "cpu",
            "reduce_bucket_size": 0,
        }
        and run["accumulation"] == 1
    )
    calls = [c for c in estimate(job_of(run)).communication.collectives if c.fabric == "pcie"]
    share = FILE["parameters"] // FILE["gpus"]
    for way, word in (("down", "to the CPU"), ("up", "from the CPU")):
        assert (
            sum(c.sent_bytes for c in calls if c.what.endswith(word))
            == FILE["transfers"][of][way] * share
        )


def bare(zero: dict[str, Any], *, params: int = 10**9, gpus: int = 1, **cluster: Any) -> Job:
    return Job.model_validate(
        {"model": {"params": params}, "cluster": {"gpus": gpus, **cluster}, "zero": zero}
    )


def test_zero_offload_on_one_gpu() -> None:
    """[Off] §4: 16, 14, 4 and 2 bytes per parameter on the GPU, and 4 that cross."""
    answer = estimate(bare({"stage": 2, "offload_optimizer": "cpu"}))
    assert answer.memory.gpu.states_bytes == 2 * 10**9
    assert answer.memory.cpu is not None
    assert answer.memory.cpu.bytes_per_node == 14 * 10**9
    assert answer.communication.host_bytes_per_gpu == 4 * 10**9


DEVICES = ("none", "cpu", "nvme")


@given(
    gpus=st.integers(1, 200),
    per_node=st.sampled_from([1, 4, 8]),
    optimizer=st.sampled_from(DEVICES),
    params=st.sampled_from(DEVICES),
    size=st.integers(1, 10**12),
    stage=st.sampled_from([2, 3]),
    accumulation=st.integers(1, 3),
)
def test_an_offloaded_byte_leaves_the_gpu_and_arrives_elsewhere(
    gpus: int, per_node: int, optimizer: str, params: str, size: int, stage: int, accumulation: int
) -> None:
    if stage == 2:
        params, optimizer = "none", "none" if optimizer == "nvme" else optimizer
    table = {
        "model": {"params": size},
        "cluster": {"gpus": gpus, "gpus_per_node": per_node, "nvme_capacity": "1PB"},
    }
    table["training"] = {"accumulation": accumulation}

    def of(optimizer: str, params: str) -> Estimate:
        zero = {"stage": stage, "offload_optimizer": optimizer, "offload_params": params}
        return estimate(Job.model_validate({**table, "zero": zero}))

    before, after = of("none", "none"), of(optimizer, params)
    ranks = min(gpus, per_node)
    away = sum(tier.bytes_per_node for tier in (after.memory.cpu, after.memory.nvme) if tier)
    assert before.memory.gpu.states_bytes * ranks == after.memory.gpu.states_bytes * ranks + away
    assert after.communication.sent_bytes_per_gpu == before.communication.sent_bytes_per_gpu
    assert bool(after.communication.host_bytes_per_gpu) == (optimizer != "none" or params != "none")
    assert bool(after.communication.nvme_bytes_per_gpu) == ("nvme" in (optimizer, params))
    for entry in everywhere(after):
        assert entry.bytes == entry.formula(**entry.inputs)
        assert set(entry.moments) <= set(MOMENTS)


FRAMEWORK_CHOICES = [
    ("deepspeed", {"stage": 1, "offload_optimizer": "cpu"}),
    ("deepspeed", {"stage": 2, "offload_optimizer": "cpu"}),
    *[
        ("deepspeed", {"stage": 3, "offload_optimizer": o, "offload_params": p})
        for o in DEVICES
        for p in DEVICES
        if (o, p) != ("none", "none")
    ],
    *[
        (f, {"stage": s, "offload_optimizer": "cpu", "offload_params": "cpu"})
        for f in ("fsdp1", "fsdp2", "torchtitan")
        for s in (2, 3)
    ],
]


@pytest.mark.parametrize(("framework", "zero"), FRAMEWORK_CHOICES)
@pytest.mark.parametrize(
    "model",
    [FILE["model"], {"params": 10**8}, {**FILE["model"], "lora": {"rank": 4}}],
    ids=["whole", "bare", "lora"],
)
@pytest.mark.parametrize(("gpus", "accumulation"), [(1, 1), (8, 3), (48, 1)])
def test_any_choice_of_offload(
    framework: str, zero: dict[str, Any], model: dict[str, Any], gpus: int, accumulation: int
) -> None:
    cluster = {"gpus": gpus, "nvme_capacity": "30TB"}
    table = {
        "model": model,
        "cluster": cluster,
        "framework": framework,
        "training": {"accumulation": accumulation},
    }
    without = estimate(Job.model_validate({**table, "zero": {"stage": zero["stage"]}}))
    answer = estimate(Job.model_validate({**table, "zero": zero}))
    assert (
        answer.memory.gpu.peak_bytes
        <= without.memory.gpu.peak_bytes + 2 * 2 * FILE["largest_tensor"]
    )  # its two buffers for a tensor
    assert answer.memory.gpu.states_bytes <= without.memory.gpu.states_bytes
    for tier in (answer.memory.cpu, answer.memory.nvme):
        if tier is not None:
            assert tier.bytes_per_node == sum(
                t.bytes for t in tier.terms if t.kind != "fragmentation"
            )
            assert tier.bytes_per_node <= tier.high_bytes_per_node <= 2 * tier.bytes_per_node
    assert (answer.memory.nvme is not None) >= (zero.get("offload_optimizer") == "nvme")
    assert all(c.count > 0 and c.sent_bytes > 0 for c in answer.communication.collectives)


@given(sizes=st.lists(st.integers(0, 2**40), max_size=20))
def test_page_locked_memory_is_less_than_twice_as_much(sizes: list[int]) -> None:
    assert (
        sum(sizes)
        <= page_locked(sizes)
        <= max(0, 2 * sum(sizes) - sum(1 for size in sizes if size))
        + sum(1 for size in sizes if size == 1)
    )


def test_stages_that_cannot_offload_are_not_shown() -> None:
    assert bare({"offload_optimizer": "cpu"}, gpus=8).stages == (2, 3)
    assert bare({"offload_params": "cpu"}, gpus=8).stages == (3,)
    assert [c.stage for c in plan(bare({"offload_optimizer": "cpu"}, gpus=8)).candidates] == [2, 3]


# Time and capacity.


def on_nodes(zero: dict[str, Any], *, params: str = "", **cluster: Any) -> Job:
    model = {"params": params} if params else {"layers": 8, "hidden": 2048, "heads": 16}
    training = {} if params else {"seq": 1024, "recompute": "full"}
    return Job.model_validate(
        {
            "model": model,
            "cluster": {"gpus": 16, "node": "dgx-2", **cluster},
            "zero": zero,
            "training": training,
        }
    )


EVERYWHERE = {
    "stage": 3,
    "offload_optimizer": "nvme",
    "offload_params": "cpu",
    "offload_activations": "cpu",
}


@given(
    one=st.integers(1, 500),
    other=st.integers(1, 500),
    which=st.sampled_from(["cpu_bandwidth", "nvme_bandwidth"]),
)
def test_faster_memory_and_drives_never_take_longer(one: int, other: int, which: str) -> None:
    slow, fast = (
        estimate(on_nodes(EVERYWHERE, **{which: f"{rate}GB/s"})).time
        for rate in sorted((one, other))
    )
    assert slow is not None
    assert fast is not None
    assert slow.step_seconds >= fast.step_seconds


def test_the_hosts_step_is_bound_by_its_memory() -> None:
    answer = estimate(on_nodes({"stage": 2, "offload_optimizer": "cpu"}, cpu_bandwidth="100GB/s"))
    assert answer.time is not None
    assert answer.memory.cpu is not None
    assert answer.time.update_seconds == pytest.approx(2 * answer.memory.cpu.bytes_per_node / 100e9)


def test_time_is_unknown_without_the_hosts_bandwidth() -> None:
    job = on_nodes({"stage": 2, "offload_optimizer": "cpu"}, node=None, gpu="h100-80g")
    assert estimate(job).time is None
    assert any("--cpu-bandwidth" in note for note in plan(job).notes)


def test_all_gpus_of_a_node_share_its_link() -> None:
    """[Inf] slides: 64 GB/s for the 16 GPUs of a DGX-2, 4 each, below the 15.75 of their own
    links.
    """
    cluster = on_nodes(EVERYWHERE).cluster
    assert cluster.host_bytes_per_second_per_gpu == 4 * 10**9
    assert cluster.nvme_bytes_per_second_per_gpu == 28 * 10**9 // 16


@pytest.mark.parametrize(
    ("memory", "fits", "words"),
    [
        ("200GB", False, "is short by 37.25 GiB of CPU memory per node"),
        ("300GB", None, "if pinned buffers fit in "),
        ("400GB", True, "fits"),
    ],
)
def test_what_a_host_holds(memory: str, fits: bool | None, words: str) -> None:
    """16 GPUs of one node: 16Ψ of 15B parameters, and half as much again for buffers."""
    zero = {"stage": 3, "offload_optimizer": "cpu", "offload_params": "cpu"}
    model = {"layers": 2, "hidden": 1024, "heads": 16}
    job = Job.model_validate(
        {
            "model": {"params": "15B", "blocks": 100},
            "cluster": {"gpus": 16, "node": "dgx-2", "cpu_memory": memory},
            "zero": zero,
        }
    )
    host = estimate(job).memory.cpu
    assert host is not None
    assert (host.bytes_per_node, host.high_bytes_per_node) == (240 * 10**9, 360 * 10**9)
    assert host.lacking_bytes == (40 * 10**9 if memory == "200GB" else 0)
    assert (estimate(job).fits is False) == (fits is False)
    # Where all of the GPU's memory is known, so is what fits.
    table: dict[str, Any] = {
        "model": model,
        "training": {"seq": 128},
        "cluster": {"gpus": 16, "node": "dgx-2"},
        "zero": zero,
    }
    small = estimate(Job.model_validate(table)).memory.cpu
    assert small is not None
    least, most = small.bytes_per_node, small.high_bytes_per_node
    capacity = {False: least - 1, None: most - 1, True: most}[fits]
    answer = plan(
        Job.model_validate({**table, "cluster": {**table["cluster"], "cpu_memory": capacity}})
    )
    assert answer.candidates[0].fits is fits
    if fits is None:
        assert words in (answer.recommended.why[0] if answer.recommended else "")


def test_drives_that_are_full() -> None:
    zero = {"stage": 3, "offload_optimizer": "nvme", "offload_params": "nvme"}
    answer = plan(
        Job.model_validate(
            {"model": {"params": "2T"}, "cluster": {"gpus": 16, "node": "dgx-2"}, "zero": zero}
        )
    )
    assert answer.verdict == "does_not_fit"
    nvme = answer.candidates[0].memory.nvme
    assert nvme is not None
    assert nvme.lacking_bytes == 32 * 10**12 - 30 * 10**12


def test_what_would_fit_on_the_host_is_a_note() -> None:
    """deepspeedai issue trackers' most asked: 8B on one GPU; optimizer states on the host make it
    fit.
    """
    answer = run_line(
        "plan --model llama-3-8b --gpus 1 --gpu h100-80g --seq 128 --recompute full "
        "--framework deepspeed --json"
    ).out
    notes = json.loads(answer)["notes"]
    assert any(
        note.startswith("--offload-optimizer cpu: ZeRO-") and "of CPU memory per node" in note
        for note in notes
    )


def test_what_would_fit_says_what_is_not_counted_and_whose_share_it_is() -> None:
    for flags, words in (
        (
            "--model llama-3-8b --gpus 1 --gpu h100-80g --seq 128 --recompute full "
            "--framework deepspeed --cpu-memory 150GB",
            ", not counting pinned-buffer rounding, with ",
        ),
        (
            "--params 60B --gpus 16 --pp 2 --gpu a100-40g --stage 1",
            "fits on an even share of the pipeline in ",
        ),
    ):
        notes = json.loads(run_line(f"plan {flags} --json").out)["notes"]
        assert any(words in note and note.endswith("of CPU memory per node") for note in notes)


def test_host_memory_of_a_70b_model() -> None:
    """THUDM/slime issue 1851 and others: 18 bytes per parameter, 1,270 GB; with parameters on the
    host 20.
    """
    table = {"model": "llama-3-70b", "cluster": {"gpus": 8}, "framework": "deepspeed"}
    for zero, per_parameter in (
        ({"offload_optimizer": "cpu"}, 18),
        ({"offload_optimizer": "cpu", "offload_params": "cpu"}, 20),
    ):
        host = estimate(Job.model_validate({**table, "zero": {"stage": 3, **zero}})).memory.cpu
        assert host is not None
        assert host.bytes_per_node == pytest.approx(per_parameter * 70_553_706_496, rel=1e-6)


# What is refused, in one line.

NODE = "--params 1B --gpus 8 "
REFUSED = [
    (
        NODE + "--stage 1 --offload-optimizer cpu",
        "--offload-optimizer: cpu is not supported at stage 1 of paper (supported: stages 2, 3)",
    ),
    (
        NODE + "--stage 2 --offload-params cpu",
        "--offload-params: cpu is not supported at stage 2 of paper (supported: stage 3)",
    ),
    (NODE + "--offload-optimizer nvme", "--offload-optimizer: nvme needs a capacity"),
    (NODE + "--offload-params nvme", "--offload-params: nvme needs a capacity"),
    (
        NODE + "--framework deepspeed --stage 2 --offload-optimizer nvme --nvme-capacity 1TB",
        "--offload-optimizer: nvme is not supported at stage 2",
    ),
    (
        NODE + "--framework fsdp2 --offload-optimizer cpu",
        "--offload-params: fsdp2 offloads parameters, gradients and optimizer states together",
    ),
    (
        NODE + "--framework fsdp1 --offload-params cpu",
        "--offload-optimizer: fsdp1 offloads parameters, gradients and optimizer states together",
    ),
    (
        NODE + "--framework torchtitan --offload-params nvme --offload-optimizer nvme",
        "--offload-optimizer: nvme is not supported by torchtitan (supported: cpu)",
    ),
    (
        NODE + "--framework megatron --offload-optimizer cpu",
        "--offload-optimizer: not supported by megatron",
    ),
    (NODE + "--offload-optimizer disk", "--offload-optimizer: 'disk' is not one of"),
    (
        NODE + "--offload-activations cpu",
        "--offload-activations: needs --recompute full: it moves activation checkpoints to the CPU",
    ),
    (
        NODE + "--framework fsdp2 --offload-activations cpu --recompute full",
        "--offload-activations: not supported by fsdp2",
    ),
    (
        NODE + "--stage 3 --offload-optimizer cpu --defer-grad-sync",
        "--offload-optimizer: cpu is not modelled with --defer-grad-sync",
    ),
    (
        NODE + "--stage 3 --blocks 8 --offload-params cpu --gather broadcast",
        "--offload-params: contradicts gather broadcast: every rank copies its shard",
    ),
    (NODE + "--offload-optimizer cpu --cpu-memory 0", "--cpu-memory:"),
    (NODE + "--offload-optimizer cpu --cpu-bandwidth 0GB/s", "--cpu-bandwidth:"),
    (
        NODE + "--offload-optimizer nvme --nvme-capacity 1TB --nvme-bandwidth 0GB/s",
        "--nvme-bandwidth:",
    ),
]


@pytest.mark.parametrize(("line", "wanted"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_is_refused(line: str, wanted: str) -> None:
    assert refused(run_line(f"plan {line}")).startswith(f"error: {wanted}")


def test_checkpoints_on_the_host_by_either_name() -> None:
    table: dict[str, Any] = {
        "model": {"layers": 4, "hidden": 256, "heads": 4},
        "cluster": {"gpus": 4},
        "parallel": {"tp": 4},
    }
    table["training"] = {"seq": 64, "recompute": "full"}
    split = {"stage": 1, "partition_activations": True}
    one = estimate(Job.model_validate({**table, "zero": {**split, "cpu_checkpointing": True}}))
    other = estimate(Job.model_validate({**table, "zero": {**split, "offload_activations": "cpu"}}))
    assert one == other
    whole = estimate(
        Job.model_validate({**table, "zero": {"stage": 1, "offload_activations": "cpu"}})
    )
    assert whole.memory.cpu is not None
    assert one.memory.cpu is not None
    assert whole.memory.cpu.bytes_per_node == 4 * one.memory.cpu.bytes_per_node
    assert whole.communication.host_bytes_per_gpu == 4 * one.communication.host_bytes_per_gpu
    alone = estimate(
        Job.model_validate(
            {**table, "parallel": {"tp": 1}, "zero": {"stage": 1, "offload_activations": "cpu"}}
        )
    )
    assert alone.communication.host_bytes_per_gpu == 2 * 4 * 64 * 256 * 2
    assert not [
        t for t in alone.memory.gpu.terms if t.kind == "checkpoints" and "forward" in t.moments
    ]


def test_a_stage_that_cannot_offload_has_no_estimate() -> None:
    with pytest.raises(ValueError, match="1 of paper cannot offload what is asked for"):
        estimate(bare({"offload_optimizer": "cpu"}, gpus=8), 1)


def test_a_frameworks_table_is_checked() -> None:
    framework = presets.load("frameworks", "paper")
    framework["stages"][2]["offload"]["optimizer"] = ["tape"]
    table = {
        "model": {"params": 10**9},
        "cluster": {"gpus": 8},
        "framework": framework,
        "zero": {"offload_optimizer": "cpu"},
    }
    with pytest.raises(ValueError, match=r"framework.stages.2.offload.optimizer.0"):
        Job.model_validate(table)


@given(
    table=tables(),
    choice=st.sampled_from(
        [("cpu", "none"), ("cpu", "cpu"), ("nvme", "none"), ("nvme", "nvme"), ("none", "cpu")]
    ),
)
def test_any_job_with_something_elsewhere(table: dict[str, Any], choice: tuple[str, str]) -> None:
    zero = {**table.get("zero", {}), "defer_grad_sync": False, "gather": "all-gather", "stage": [3]}
    zero["grad_sync"] = "reduce-scatter"
    table = {**table, "cluster": {**table["cluster"], "nvme_capacity": "1PB"}, "zero": zero}
    before = estimate(Job.model_validate(table))
    job = Job.model_validate(
        {**table, "zero": {**zero, "offload_optimizer": choice[0], "offload_params": choice[1]}}
    )
    after = estimate(job)
    assert after.memory.gpu.states_bytes <= before.memory.gpu.states_bytes
    ranks = job.cluster.gpus_of_a_node
    tiers = [tier for tier in (after.memory.cpu, after.memory.nvme) if tier is not None]
    away = sum(t.bytes for tier in tiers for t in tier.terms if t.kind in STATE_KINDS)
    assert before.memory.gpu.states_bytes * ranks == after.memory.gpu.states_bytes * ranks + away
    for tier in tiers:
        assert tier.bytes_per_node == sum(t.bytes for t in tier.terms if t.kind != "fragmentation")
        assert tier.high_bytes_per_node == sum(t.bytes for t in tier.terms)
    calls = after.communication.collectives
    assert after.communication.host_bytes_per_gpu == sum(
        c.sent_bytes for c in calls if c.fabric == "pcie"
    )
    assert after.communication.nvme_bytes_per_gpu == sum(
        c.sent_bytes for c in calls if c.fabric == "nvme"
    )
    assert all(call.sent_bytes == call.formula(**call.inputs) for call in calls)
    assert Job.model_validate(job.model_dump(mode="json")) == job


def test_gradients_that_wait_for_a_pipeline_do_so_on_the_gpu_and_leave_it_once() -> None:
    def at(**zero: Any) -> Estimate:
        return estimate(
            Job.model_validate(
                {
                    "model": "llama-3-8b",
                    "cluster": {"gpus": 64},
                    "framework": "torchtitan",
                    "zero": {"stage": 3, **zero},
                    "parallel": {"pp": 4},
                    "training": {"seq": 2048, "accumulation": 8},
                }
            )
        )

    kept, away = at(), at(offload_optimizer="cpu", offload_params="cpu")
    waiting = [t.bytes for t in away.memory.gpu.terms if t.kind == "gradients"]
    assert waiting == [sum(t.bytes for t in kept.memory.gpu.terms if t.kind == "gradients")]
    assert [
        c.count for c in away.communication.collectives if c.what == "gradients to the CPU"
    ] == [1]
