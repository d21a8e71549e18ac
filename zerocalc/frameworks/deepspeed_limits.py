"""What the program of DeepSpeed does not model."""

from __future__ import annotations

LIMITS = (
    "Control collectives are not counted: the overflow flag, the gradient norm, the check that "
    "all ranks saw the same trace. They are up to 3 calls of 8 bytes a step.",
    "The first two steps are not modelled. The order of modules is not known in them, and nothing "
    "is prefetched.",
    "A module without tensors next to an MLP's activation (GPT-2's dropout) is one more place to "
    "prefetch from. A call may be split in two; the bytes stay.",
    "The trace changes from step to step where layers are not called in the order of their list, "
    "or experts are called one by one. DeepSpeed asks for `set_z3_leaf_module` then, and experts "
    "are counted in that way.",
    "recompute_every: the first layers of their kind are taken as the recomputed ones, not every "
    "k-th. Bytes differ by one window at most.",
    "Pipeline stages and bare parameter counts: prefetch windows and bucket edges are not "
    "followed. Backward gathers what is beyond max_reuse_distance. Gradients on the edges of a "
    "share are not counted (two tensors at most).",
    "Windows are not followed either with adapters of embeddings, of experts or of a tied head. "
    "With hpZ the calls of later micro-batches are counted as one where DeepSpeed makes two.",
    "Adapters under zero.Init stay in PEFT's dtype, because they are made after the cast. They "
    "are counted as cast.",
    "A coalesced gather holds its output while tensors are copied out of it. These "
    "prefetch_bucket_size elements, and a tensor more, are not counted.",
    "Stage 1 with overlap_comm: the gradient of a tensor that is larger than a bucket is freed "
    "one bucket later (one tensor).",
    "Stage 1 in fp32: a rank whose share is within one tensor keeps that tensor's gradient and "
    "makes no copy. The difference is the largest tensor less P/N at most.",
    "Without contiguous_gradients, unreduced gradients and their flat copy are counted as one "
    "full bucket each, an upper bound.",
    "Buckets follow an assumed order of tensors. Where a model lists norms of attention heads in "
    "another order, the sizes of two calls differ by these tensors. So do stages 1 and 2 of "
    "families that list all norms first (GPT-NeoX) or the final norm before the layers (OPT).",
    "qgZ's buffers (a tensor in 4 bits, twice) are not counted.",
    "MiCS, until DeepSpeed 0.19.8, which refuses it, follows the source and was not recorded. Its "
    "hierarchical gathers are not followed.",
    "ZenFlow, Muon, SuperOffload, compiled stage 3 and GPUDirect Storage are not offered.",
    "stage3_model_persistence_threshold, stage3_use_all_reduce_for_fetch_params, "
    "stage3_allgather_sequential, stage3_module_granularity_threshold and parameter_alignment are "
    "named in a note and not modelled.",
    "OPT's layers call the parts of their MLP themselves, so that there is one module less to "
    "prefetch from. A tensor or two more may be gathered.",
    "round_robin_gradients: bytes stay. Sizes of calls differ without "
    "use_multi_rank_bucket_allreduce, and for a tensor that is larger than a bucket.",
    "fp16 with grad_accum_dtype fp32 at stage 1: bytes are as recorded, in buckets of "
    "reduce_bucket_size. Memory is taken as that of bf16.",
    "qwZ: the int8 copy from which a gather's weights are made is not counted (one byte an "
    "element).",
    "Offload: CPU memory was recorded in 9 runs. Transfers, rounding of pinned memory and what is "
    "on drives follow the source. The part of a tensor's gradients that becomes fp32 on its way "
    "to the CPU is not counted. Offload together with grad_accum_dtype, hpZ, qwZ or qgZ is "
    "refused.",
    "Allocator fragmentation, NCCL's buffers and kernel workspaces were not recorded: no run was "
    "on a GPU.",
)
