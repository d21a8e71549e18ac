"""The command line: thin, lazy, and the only place that knows typer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from zerocalc import __version__, spec
from zerocalc.cli import streams
from zerocalc.cli.error_location import about
from zerocalc.cli.errors import UserError
from zerocalc.cli.flags import FLAGS
from zerocalc.lazy import submodules
from zerocalc.presets import is_path, is_preset, label, nearest
from zerocalc.quantities import shown

if TYPE_CHECKING:
    from zerocalc.cli import job_file as job_file
else:
    __getattr__ = submodules(__name__)

COMMANDS = ("plan", "explain", "step", "export", "params", "paper", "presets")
INTERRUPTED = 130
"""Exit status of a program that Ctrl-C stopped, as shells count it: 128 + SIGINT."""
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Sections(TyperCommand):
    """A command whose plain help groups options under their panels' names, and that spends nothing
    on options that are not given.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            process = _needed(parameter) if parameter.required else _unless_absent
            parameter.process_value = process(parameter.process_value)  # type: ignore[method-assign, assignment]

    def make_parser(self, ctx: Any) -> Any:
        """The parser, which takes no option twice with different values: one of them would not
        count.
        """
        parser = super().make_parser(ctx)
        for option in {
            id(option): option for option in getattr(parser, "_long_opt", {}).values()
        }.values():
            option.process = partial(_once, option, option.process)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an unexpected one is answered with the flag that was meant."""
        ctx.allow_extra_args = True
        astray = super().parse_args(ctx, args)
        if astray and not ctx.resilient_parsing:
            raise UserError(
                _astray(
                    astray[0],
                    ctx.info_name,
                    {option for parameter in self.params for option in parameter.opts},
                )
            )
        return astray

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _unless_absent(process: Callable[[Any, Any], Any]) -> Any:
    """Spare typer the validator that it builds for each parameter, be it only to find that there is
    no value.
    """
    return lambda context, value: None if value is None else process(context, value)


def _needed(parameter: Any) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """For a parameter that must be given: say of one that is not what would be right."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar

    def wrap(process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def processed(context: Any, value: Any) -> Any:
            if value is None and not context.resilient_parsing:
                raise UserError(f"{name}: is missing. {parameter.help.rstrip('.')}")
            return process(context, value)

        return processed

    return wrap


def _astray(word: str, command: str, options: set[str]) -> str:
    """The error for an unexpected argument."""
    of = next(
        (
            flag
            for flag in FLAGS
            if flag.complete and flag.name in options and is_preset(flag.complete, word)
        ),
        None,
    )
    if of is None and "--model" in options and is_path(word):
        of = next(flag for flag in FLAGS if flag.path == "model")
    where = (
        f"give it as {of.name} {label(word)}"
        if of
        else f"zerocalc {command} --help lists the flags"
    )
    return f"{label(word)}: unexpected argument; {where}"


def _once(option: Any, process: Callable[[Any, Any], Any], value: Any, state: Any) -> None:
    """Process an option, unless it was given another value before."""
    new = value if option.takes_value else option.const
    before = state.opts.get(option.dest, new)
    if before != new:
        name = option.obj.opts[0]
        if option.takes_value:
            raise UserError(f"{name}: given twice, as {shown(before)} and {shown(new)}")
        raise UserError(f"{name}: contradicts --no-{name[2:]}")
    process(value, state)


class Lazy(TyperGroup):
    """A group that imports a command's module only when that command is wanted."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands' names, in the order in which they are explained."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names. Raises `UserError` where it names none, with
        those that there are.
        """
        if (
            args
            and args[0] not in COMMANDS
            and not ctx.resilient_parsing
            and not args[0].startswith("-")
        ):
            raise UserError(
                f"{shown(args[0])} is not a command{nearest(args[0], COMMANDS)}; the "
                f"commands are {', '.join(COMMANDS)}; --help explains them"
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or ``None`` for a name that is none."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"zerocalc.cli.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Lazy,
    rich_markup_mode=None,
    add_completion=True,
    context_settings=HELP_NAMES,
    pretty_exceptions_enable=False,
)


def new_app() -> typer.Typer:
    """The typer application that one command's module registers itself with."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP_NAMES)


def examples(*lines: str) -> str:
    """The end of a command's help: command lines as they are typed, without the program's name."""
    return "\n".join(["\b", "Examples:", *(f"  zerocalc {line}" for line in lines)])


def _version(value: bool) -> None:
    if value:
        typer.echo(f"zerocalc {__version__}")
        raise typer.Exit


@app.callback(
    help="Calculate memory, traffic and step time of training under ZeRO or FSDP.",
    epilog=examples("plan --model llama-3-8b --gpus 8 --gpu h100-80g", "plan --help"),
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program: 0 answered, 1 where a check says no, 2 bad input in one line on stderr."""
    is_open = streams.prepare()
    status = streams.flush(run(sys.argv[1:]))
    if not is_open and status != streams.REFUSED:
        status = streams.refuse("standard output: closed")
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit status."""
    try:
        return app(arguments or ["--help"], prog_name="zerocalc", standalone_mode=False) or 0
    except (UserError, ValueError) as error:
        return streams.refuse(_worded(error))
    except (
        SystemExit
    ):  # typer's answer to a closed pipe, and to nothing else: commands return their status
        return streams.unwritable(BrokenPipeError())
    except OSError as error:  # files are read elsewhere, and their errors worded there
        return streams.unwritable(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except typer.TyperException as error:
        return streams.refuse(error.format_message().rstrip("."))


def _worded(error: Exception) -> str:
    """What to say of bad input; of a contradiction found beyond validation, with the field named by
    its flag. Any other error is a fault of ours.
    """
    if isinstance(error, UserError):
        return str(error)
    if not isinstance(error, spec.base.FieldError):
        raise error
    return about(error.path, str(error))
