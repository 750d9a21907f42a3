"""``draftport``: the command line."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

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
    kind: Any = bool | None if is_switch else str | None
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
    """Serve the REST API, and hold the target in a worker process.

    One API process serves one worker: there is no --workers.
    """
    from .commands.serve import run  # noqa: PLC0415 - only this command needs the web framework

    raise typer.Exit(run(settings))


@app.command()
@with_settings
def worker(settings: Settings) -> None:
    """Run a worker on its own, for an API process with DRAFTPORT_WORKER=attach."""
    from .commands.worker import run  # noqa: PLC0415

    raise typer.Exit(run(settings))


Model = Annotated[
    str | None,
    typer.Argument(help="Hub id, directory, or - for a config.json on standard input", show_default=False),
]
Revision = Annotated[str | None, typer.Option(help="Revision of a hub id")]
Engine = Annotated[str | None, typer.Option(help="For example vllm==0.33.0; default: the newest known")]
Target = Annotated[str | None, typer.Option(help="Target model, to check against")]
Count = Annotated[int | None, typer.Option(min=1, show_default=False)]
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
    draft_load_format: Annotated[str | None, typer.Option(help="The draft's own load format")] = None,
    method: Annotated[str | None, typer.Option(help="The drafter's family")] = None,
    revision: Revision = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """Say with which load config the draft model will really be loaded."""
    from .commands.metadata import LoadConfigQuestion  # noqa: PLC0415
    from .commands.metadata import load_config as run  # noqa: PLC0415

    question = LoadConfigQuestion(load_format, pp, draft_load_format, method, engine)
    raise typer.Exit(run(model, question, revision=revision, as_json=as_json))


@app.command()
def plan(
    *,
    target: Annotated[str | None, typer.Option(help="Hub id, directory or config.json")] = None,
    target_revision: Annotated[str | None, typer.Option("--revision", help="Of the target")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id, directory or config.json")] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Of the draft")] = None,
    method: Annotated[str | None, typer.Option(help="What the engine is told")] = None,
    num_speculative_tokens: Count = None,
    max_num_batched_tokens: Count = None,
    max_num_seqs: Count = None,
    tensor_parallel_size: Annotated[int | None, typer.Option("--tensor-parallel-size", "--tp", min=1)] = None,
    pipeline_parallel_size: Annotated[
        int | None,
        typer.Option("--pipeline-parallel-size", "--pp", min=1),
    ] = None,
    draft_tensor_parallel_size: Annotated[
        int | None,
        typer.Option("--draft-tensor-parallel-size", "--draft-tp", min=1),
    ] = None,
    load_format: Annotated[str | None, typer.Option(help="The target's load format")] = None,
    draft_load_format: Annotated[str | None, typer.Option(help="The draft's own load format")] = None,
    dtype: Annotated[str | None, typer.Option(help="By default the target config's")] = None,
    engine: Engine = None,
    from_vllm_args: Annotated[
        str | None,
        typer.Option(help="A whole `vllm serve ...` command line, as one argument"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a target and a drafter will work together; exit status 1 where something will break."""
    from .commands.plan import run as answer  # noqa: PLC0415

    options = {
        "target_name": target, "target_revision": target_revision, "draft_name": draft, "draft_revision": draft_revision,
        "method": method, "num_speculative_tokens": num_speculative_tokens, "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs, "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size, "draft_tensor_parallel_size": draft_tensor_parallel_size,
        "dtype": dtype, "engine": engine, "load_format": load_format, "draft_load_format": draft_load_format,
    }  # fmt: skip
    raise typer.Exit(answer(options, from_vllm_args, as_json=as_json))


@app.command("hidden-states")
def hidden_states(
    prompt: Annotated[list[str], typer.Option("--prompt", help="Text of a prompt; may be repeated")],
    *,
    socket: Annotated[str | None, typer.Option(help="The worker's socket")] = None,
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
    if "serve" in sys.argv and any(word.partition("=")[0] == "--workers" for word in sys.argv):
        sys.stderr.write(
            "draftport: there is one API process per worker, so --workers is refused; run more replicas instead.\n"
        )
        raise SystemExit(COULD_NOT_ANSWER)
    app()


if __name__ == "__main__":
    main()
