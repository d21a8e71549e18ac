"""The rows of a framework's stage: kinds of collectives, and memory beside states and
activations.
"""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from zerocalc.quantities import Whole
from zerocalc.spec.base import Spec
from zerocalc.spec.framework import Choice, Moment

Part = Literal[
    "all",
    "trainable",
    "persistent",
    "partitioned",
    "root",
    "embedding",
    "layer",
    "layers",
    "head",
    "tensor",
    "edges",
    "touched",
]
"""Parts of the parameters; ``layer``: the largest one, ``layers``: all of them; ``tensor``: the
largest one; ``edges``: what tensors with a part in a rank's share have beyond it, and the one whose
gradient is being made; ``touched``: tensors with a part in the share of some rank of a node, whole,
once for each rank.
"""
Pinned = Literal["whole", "unit", "tensor"]
"""Allocations of page-locked memory: one, one a unit, one a tensor."""
Limit = Literal["reduce_bucket_size", "sub_group_size", "max_live_parameters", "max_reuse_distance"]
TrafficDtype = Literal["gather", "reduce", "compute", "weights", "fp32", "int8"]
"""Words for what a recipe says, or a dtype."""


class Move(Spec):
    """One kind of collective: when, by which operation, in which calls and dtype, and how often.

    ``by``: one call for each ``unit`` (of the kinds in ``units``, all if none is named), one for
    the whole part ``of`` the parameters, one for each ``tensor`` of it, as many as a ``bucket`` of
    the reduce size takes, as many as PyTorch's DDP makes (``arrival``: tensors as their gradients
    come, up to so many bytes), what a ``window`` over the modules to come decides
    (formulas/windows.py), or in two ``hops``, quantised (traffic/hops.py). ``order``: in which
    tensors go into buckets, as their gradients come (``arrival``) or as the ``model`` lists them
    while nothing overlaps. ``beyond``: where the modules are not known, only what is more than an
    option's number of elements. ``scale_per``: each call is followed by one of fp32 scales, for
    about so many elements one (`window` only). ``per``: a ``micro_batch``, a ``step``, a
    ``reduction`` (which the stage's ``sync`` says), or an ``unshard``: a micro-batch, but a step
    where pipelines keep what is gathered. ``fitting``: only the calls that a contiguous bucket
    takes, or only the others: tensors larger than one, all without contiguous_gradients (`bucket`
    only). ``cut``: a tensor larger than a bucket goes in pieces that end where shares do. ``over``:
    the ``shards`` of one copy, its ``replicas``, or the ``secondary`` group. ``when`` and
    ``unless``: only where options are set, or are not.
    """

    moment: Literal["forward", "backward", "step"]
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]
    what: Literal["weights", "gradients"]
    by: Literal["unit", "whole", "tensor", "bucket", "arrival", "window", "hops"]
    of: Part = "all"
    order: Literal["arrival", "model"] = "arrival"
    when: Choice | tuple[Choice, ...] | None = None
    unless: tuple[Choice, ...] = ()
    beyond: Limit | None = None
    units: tuple[Literal["root", "embedding", "layer", "head"], ...] = ()
    dtype: TrafficDtype
    scale_per: Whole | None = None
    per: Literal["micro_batch", "step", "reduction", "unshard"]
    over: Literal["shards", "replicas", "secondary"] = "shards"
    overlapped: StrictBool = False
    padded: StrictBool = True
    fitting: StrictBool | None = None
    cut: StrictBool = False


class Holding(Spec):
    """Memory beside states and activations: ``copies`` of a part of the parameters, from one moment
    to another, a rank's share of it if ``sharded``.

    ``after_layers``: only once no layer is left in backward and what stands outside the layers is
    reduced; activations are gone by then. ``largest``: not more than so many elements: the option
    of that name, such as reduce_bucket_size; ``whole``: as many, however small the part.
    ``windowed``: where the modules are known, not that part but what windows over the modules to
    come have gathered at the first moment (while the last layer is in backward; at the end of
    backward: in its last module), and by how much the pass's most goes beyond it (memory/live.py).
    ``accumulated``: from forward on where gradients outlive a micro-batch. ``what``: of gradients,
    only what is trained of the part counts. ``only``: where they do, or where reduction overlaps
    backward and they do not, or where the recipe keeps gradients in 16 bits, or where they are
    reduced once for several micro-batches, or where they are not. ``if_overlapped``: so many times
    as much where communication overlaps with computing. ``over``: a rank's share is of the
    ``shards``, or of the ``secondary`` group that holds another copy. ``when`` and ``unless``: only
    where an option is set, or is not; ``device``: only where it is set to that. ``beside``: in
    whose memory it lies: the GPU's, the host's, or that of the optimizer or the parameters,
    wherever these are. ``pinned``: on the host, in page-locked allocations: one, one a tensor, or
    one a unit; ``pieces``: one for each so many elements. ``elements``: so many, whatever the part
    has.
    """

    name: Annotated[str, Field(min_length=1, max_length=60)]
    kind: Literal["gathered", "gradients", "buffers", "copies"]
    what: Literal["weights", "gradients"] = "weights"
    of: Part
    dtype: TrafficDtype
    copies: Whole = 1
    sharded: StrictBool = False
    first: Moment
    last: Moment
    after_layers: StrictBool = False
    largest: Limit | None = None
    whole: StrictBool = False
    windowed: StrictBool = False
    accumulated: StrictBool = False
    only: (
        Literal["accumulated", "overlapped", "16-bit gradients", "deferred", "reduced at once"]
        | None
    ) = None
    if_overlapped: Whole = 1
    over: Literal["shards", "secondary"] = "shards"
    when: Choice | None = None
    unless: tuple[Choice, ...] = ()
    device: Literal["cpu", "nvme"] | None = None
    beside: Literal["gpu", "host", "optimizer", "params"] = "gpu"
    pinned: Pinned | None = None
    pieces: Limit | None = None
    elements: Whole | None = None
