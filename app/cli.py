"""``draftport``: the command line."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any, Optional

import typer
from pydantic.fields import FieldInfo

from .settings import ENV_PREFIX, Settings

COULD_NOT_ANSWER = 2

app = typer.Typer(
    name="draftport",
    help="Drafting metadata and drafter hidden states for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    is_switch = field.annotation is bool
    kind: Any = Optional[bool] if is_switch else Optional[str]  # noqa: UP045 - typer reads it at run time
    declaration = f"{flag}/--no-{name.replace('_', '-')}" if is_switch else flag
    help_text = f"{field.description} [env: {ENV_PREFIX}{name.upper()}]"
    annotation = Annotated[kind, typer.Option(declaration, help=help_text, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_settings(command: Any) -> Any:
    """Gives a command a flag for every setting; it is called with the validated ``Settings``."""

    def run(**flags: Any) -> None:
        command(_settings({name: value for name, value in flags.items() if value is not None}))

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    options = [_option(name, field) for name, field in Settings.model_fields.items()]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _settings(flags: dict[str, Any]) -> Settings:
    from pydantic import ValidationError  # noqa: PLC0415 - already loaded by then

    try:
        return Settings(**flags)
    except ValidationError as error:
        for one in error.errors(include_input=False, include_url=False):
            name = ".".join(str(part) for part in one["loc"])
            setting = f"{ENV_PREFIX}{name.upper()}: " if name else ""
            sys.stderr.write(f"draftport: {setting}{one['msg']}\n")
        raise typer.Exit(COULD_NOT_ANSWER) from None


@app.command()
@with_settings
def serve(settings: Settings) -> None:
    """Serve the REST API, and hold the target in a worker process."""
    from .commands.serve import run  # noqa: PLC0415 - only this command needs the web framework

    raise typer.Exit(run(settings))


@app.command()
@with_settings
def worker(settings: Settings) -> None:
    """Run a worker on its own, for an API process with DRAFTPORT_WORKER=attach."""
    from .commands.worker import run  # noqa: PLC0415

    raise typer.Exit(run(settings))


Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(help="Hub id, directory, or - for a config.json on standard input", show_default=False),
]
Revision = Annotated[Optional[str], typer.Option(help="Revision of a hub id")]  # noqa: UP045
Engine = Annotated[Optional[str], typer.Option(help="For example vllm==0.33.0; default: the newest known")]  # noqa: UP045
Target = Annotated[Optional[str], typer.Option(help="Target model, to check against")]  # noqa: UP045
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]


@app.command("mask-token")
def mask_token(
    model: Model,
    *,
    revision: Revision = None,
    target: Target = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """Say which mask token id a parallel drafter will use."""
    from .commands.metadata import mask_token as run  # noqa: PLC0415

    raise typer.Exit(run(model, revision=revision, target=target, engine=engine, as_json=as_json))


@app.command("load-config")
def load_config(
    model: Model = None,
    *,
    load_format: Annotated[str, typer.Option(help="The target's load format")] = "auto",
    pp: Annotated[int, typer.Option("--pipeline-parallel-size", "--pp", min=1)] = 1,
    draft_load_format: Annotated[Optional[str], typer.Option(help="The draft's own load format")] = None,  # noqa: UP045
    method: Annotated[Optional[str], typer.Option(help="The drafter's family")] = None,  # noqa: UP045
    revision: Revision = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """Say with which load config the draft model will really be loaded."""
    from .commands.metadata import LoadConfigQuestion  # noqa: PLC0415
    from .commands.metadata import load_config as run  # noqa: PLC0415

    question = LoadConfigQuestion(load_format, pp, draft_load_format, method, engine)
    raise typer.Exit(run(model, question, revision=revision, as_json=as_json))


@app.command("hidden-states")
def hidden_states(
    prompt: Annotated[list[str], typer.Option("--prompt", help="Text of a prompt; may be repeated")],
    *,
    socket: Annotated[Optional[str], typer.Option(help="The worker's socket")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Read hidden states from the running worker, without a copy, and print what they look like."""
    from .commands.hidden_states import run  # noqa: PLC0415

    raise typer.Exit(run(prompt, socket=socket, as_json=as_json))


@app.command()
def healthcheck(
    url: Annotated[
        str | None, typer.Option(help="Probe to ask; default: /livez of this host's settings")
    ] = None,
) -> None:
    """Ask the running service whether it lives; exit status 0 or 1."""
    from .commands.healthcheck import run  # noqa: PLC0415

    raise typer.Exit(run(url))


def main() -> None:
    """Entry point of the ``draftport`` script."""
    app()


if __name__ == "__main__":
    main()
