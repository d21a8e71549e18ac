"""What a job takes by default: parts that another part names, and learned positions."""

from typing import Any

from zerocalc import presets
from zerocalc.quantities import parse_whole
from zerocalc.spec.dimensions import DEFAULT_KIND, GPT2_POSITIONS, only_given, positions_for
from zerocalc.spec.model import Model

DEFAULT_FRAMEWORK = "paper"
DEFAULT_OF = (("recipe", "framework"), ("implementation", "framework"), ("loss", "implementation"))
"""(part, the part that names it): a framework names a recipe and an implementation, an
implementation names a loss.
"""


def with_defaults(job: dict[str, Any]) -> dict[str, Any]:
    """The table of a job with the parts filled in that it does not have. Nothing is validated.

    Raises `PresetError` if a preset or file that names a default cannot be read.
    """
    data = dict(job)
    for part in ("model", "cluster"):
        if data.get(part) is None:
            data[part] = {}  # so that its own validation says what is missing
    for part in ("training", "parallel", "zero"):
        # Validated with the rest: a default that is a model needs a validator of its own.
        data.setdefault(part, {})
    data["model"] = _with_positions(data["model"], data.get("training"))
    data.setdefault("framework", DEFAULT_FRAMEWORK)
    for part, owner in DEFAULT_OF:
        if data.get(part) is None:
            default = _named_by(data, owner, part)
            if default is not None:
                data[part] = default
    return data


def _named_by(data: dict[str, Any], owner: str, part: str) -> Any:
    """The default of ``part`` that ``owner`` names; a name there is replaced by its preset."""
    described = data.get(owner)
    if isinstance(described, str):
        described = data[owner] = presets.load(f"{owner}s", described)
    if not isinstance(described, dict):
        return getattr(described, part, None)
    like = described.get("like")
    if part in described or not isinstance(like, str):
        return described.get(part)
    return _named_by({owner: like}, owner, part)  # a framework's file may change one field alone


def _with_positions(model: Any, training: Any) -> Any:
    """A GPT-2-like model with as many learned positions as the sequence needs, and an assumption
    that says so, unless the number is given. Positions that were filled in for another sequence
    are filled in anew.
    """
    seq = training.get("seq") if isinstance(training, dict) else getattr(training, "seq", None)
    try:
        needed = max(parse_whole(seq), GPT2_POSITIONS)
    except ValueError:
        needed = GPT2_POSITIONS
    if isinstance(model, Model) and "positions" in model.filled and model.positions != needed:
        model = model.model_dump()
    if not isinstance(model, dict):
        return model
    if model.get("positions") != needed:
        model = only_given(model, ("positions",))
    if (
        model.get("positions") is not None
        or model.get("hidden") is None
        or (model.get("kind") or DEFAULT_KIND) != "gpt2"
        or needed == GPT2_POSITIONS
    ):
        return model
    if not all(isinstance(model.get(key, ()), (list, tuple)) for key in ("assumed", "filled")):
        return model  # its own validation says so
    assumed, filled = (
        (*model.get("assumed", ()), positions_for(needed)),
        (*model.get("filled", ()), "positions"),
    )
    return {**model, "positions": needed, "assumed": assumed, "filled": filled}
