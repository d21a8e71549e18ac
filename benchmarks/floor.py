"""The least that a command line on typer and pydantic can be: one command, one model, one JSON
object. What cold_start.py compares with.
"""

import typer
from pydantic import BaseModel

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


class Question(BaseModel):
    """The one model."""

    params: int
    gpus: int


@app.command()
def main(params: int = 10_000_000_000, gpus: int = 64) -> None:
    """Validate two numbers and print them as JSON."""
    typer.echo(Question.model_validate({"params": params, "gpus": gpus}).model_dump_json())


if __name__ == "__main__":
    app()
