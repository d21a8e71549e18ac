"""What a framework's stage can keep elsewhere than on the GPU, as data."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from zerocalc.spec.base import Spec
from zerocalc.spec.framework_rows import Pinned, TrafficDtype
from zerocalc.spec.zero import Window


class Transfer(Spec):
    """One kind of copy of gradients in backward, ``down`` to the host or ``up`` to the GPU, where
    the optimizer is not on the GPU.

    ``of``: a rank's ``share`` of what is trained, or whole tensors with a part in it (``touched``).
    ``per``: a step, a ``reduction`` (which the stage's ``sync`` says), a micro-batch, or each
    ``later`` one than the first. ``only``: where gradients outlive a micro-batch.
    """

    way: Literal["down", "up"]
    of: Literal["share", "touched"] = "share"
    dtype: TrafficDtype
    per: Literal["micro_batch", "later", "step", "reduction"]
    only: Literal["accumulated"] | None = None


class Offload(Spec):
    """What a stage can keep elsewhere than on the GPU, and how.

    ``optimizer``, ``params``: the devices that each may go to; ``together``: one only with the
    other, to the same. Gradients that are sharded go with the optimizer, ``moved`` as they are or
    ``replaced`` by rows of the stage's own. ``pinned``: which rows of a recipe are page-locked on
    the host, ``pinned_by`` one allocation each, a unit or a tensor; ``factor``: what buffers take
    on the host at most, where allocations are not known. ``gathers_in``: the dtype in which a
    rank's part of each gather comes from the host; new weights cross after the step where they and
    the optimizer do not lie together. ``params_in_cpu``: elements of a rank's share that stay in
    the host's memory when parameters go to drives.
    """

    source: Annotated[str, Field(max_length=500)]

    optimizer: tuple[Literal["cpu", "nvme"], ...] = ()
    params: tuple[Literal["cpu", "nvme"], ...] = ()
    together: StrictBool = False
    gradients: Literal["moved", "replaced"] = "moved"
    pinned: tuple[Literal["weights", "gradients", "master"], ...] = ()
    pinned_by: Pinned = "whole"
    factor: Annotated[float, Field(ge=1, le=2)] = 1.0
    params_in_cpu: Window = 0
    gathers_in: TrafficDtype = "gather"
    transfers: tuple[Transfer, ...] = ()

    def takes(self, optimizer: str, params: str) -> bool:
        """Whether the optimizer and the parameters can lie there; ``none`` is the GPU."""
        if self.together and optimizer != params:
            return False
        return (optimizer == "none" or optimizer in self.optimizer) and (
            params == "none" or params in self.params
        )
