"""Flags as parameters of typer's commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from zerocalc import presets
from zerocalc.cli.flags import CONFIG, COUNT_WITH, COUNTERS, FLAGS, Flag


def file_option(name: str, help_text: str, metavar: str | None = None, **more: Any) -> Any:
    """An option for input and output."""
    return typer.Option(
        name, metavar=metavar, help=help_text, rich_help_panel="Input and output", **more
    )


JobFile = Annotated[
    Optional[str],
    file_option("--job", "Job file, or an answer's JSON; - is stdin.", "FILE|-"),
]
ConfigFile = Annotated[
    Optional[str],
    file_option(
        "--config",
        "DeepSpeed, accelerate or torchtitan file.",
        "FILE|-",
    ),
]
CountWith = Annotated[
    Optional[str],
    file_option(
        "--count-with",
        "Counter for config.json (extra: transformers).",
        "|".join(COUNTERS),
    ),
]
AsJson = Annotated[bool, file_option("--json", "Print JSON.")]


def _names(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in presets.names(kind) if name.startswith(incomplete)]

    return complete


def option(flag: Flag) -> Any:
    """The typer option of a flag."""
    if flag.switch:
        names = [f"{flag.name}/--no-{flag.name[2:]}"] + ([flag.alias] if flag.alias else [])
        return typer.Option(*names, help=flag.help, rich_help_panel=flag.panel, show_default=False)
    complete = _names(flag.complete) if flag.complete else None
    return typer.Option(
        flag.name,
        metavar=flag.metavar,
        help=flag.help,
        rich_help_panel=flag.panel,
        show_default=False,
        autocompletion=complete,
    )


def job_flags(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command every job flag, ``--config`` and ``--count-with``.

    It receives ``job_file`` and, as ``given``, the flags that were set: ``{path: value}``.
    """

    def wrapper(**values: Any) -> int | None:
        given = {
            flag.path: values.pop(flag.parameter) for flag in FLAGS if flag.parameter in values
        }
        given |= {name: values.pop(name, None) for name in (CONFIG, COUNT_WITH)}
        return command(
            given={path: value for path, value in given.items() if value is not None}, **values
        )

    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "given"
    ]
    shared = [
        inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Optional[bool] if flag.switch else Optional[str], option(flag)],
        )
        for flag in FLAGS
    ]
    files = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in ((CONFIG, ConfigFile), (COUNT_WITH, CountWith))
    ]
    parameters = [*own, *shared, *files]
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
