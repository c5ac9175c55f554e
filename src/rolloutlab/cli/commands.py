"""Commands of the command line: `rolloutlab serve`, `capture`, `report`, `engine check`, `passcode` and more."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rolloutlab.cli.capture import add_capture, split_command
from rolloutlab.cli.engine import add_check_options
from rolloutlab.cli.engine import check as check_engine
from rolloutlab.cli.report import add_report
from rolloutlab.errors import InputError, PolicyError, RolloutlabError
from rolloutlab.fsutil import path_of, refused
from rolloutlab.settings import PACKAGED, SMOLLM2, ModelSettings, Settings, engines, explain_error, read_settings

if TYPE_CHECKING:
    from rolloutlab.service.lifecycle import Folder
    from rolloutlab.service.listen import ListenAddress

_PROBE_TIMEOUT = 0.5
"""Seconds that `serve` waits for the folder's lock: a client that only tests it holds it for a shorter time."""
_PREDECESSOR_TIMEOUT = 60.0
"""Seconds that a service started by a notebook waits for the one before it to end."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status: 0, 1 for a failed check, 2 for an error of ours, 130 interrupted."""
    try:
        own, program = split_command(sys.argv[1:] if arguments is None else arguments)
        options = _make_parser().parse_args(own, argparse.Namespace(program=program))
        if sys.flags.optimize > 1:
            message = "transformers needs docstrings, which PYTHONOPTIMIZE=2 and python -OO remove"
            raise InputError(message, hint="PYTHONOPTIMIZE=1")
        return options.command(options) or 0
    except RolloutlabError as error:
        print("\n".join(error._render_traceback_()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _make_parser() -> argparse.ArgumentParser:
    settings = read_settings()
    parser = argparse.ArgumentParser(prog="rolloutlab", description="Reinforcement learning on language models.")
    commands = parser.add_subparsers(required=True)
    serve = commands.add_parser("serve", help="serve a policy over HTTP: chat completions and training")
    serve.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    serve.add_argument("--host", default="127.0.0.1", help="a name or address of this machine (default: %(default)s)")
    serve.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    _add_model_options(serve, settings)
    serve.add_argument("--token-lifetime", type=float, default=600.0, help="of access tokens, in seconds (%(default)s)")
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the host (PEM), to serve https")
    serve.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="its key (PEM); required if --host is not this machine"
    )
    serve.add_argument("--linger", type=float, help="stop after this many seconds without a client (default: never)")
    serve.add_argument(
        "--start-empty",
        action="store_true",
        help="set checkpoints aside where the database lists no model, instead of refusing to start",
    )
    serve.set_defaults(command=_serve)
    add_capture(commands)
    engine = commands.add_parser("engine", help="the engine, which samples and trains for the service")
    what = "measure whether an engine computes what it should: logprobs, ratios, gradients, resuming, seeds, throughput"
    check = engine.add_subparsers(required=True, metavar="check").add_parser(
        "check",
        help="measure whether an engine computes what it should",
        description=f"{what}. It trains and samples on checkpoints of its own, and leaves nothing behind.",
        epilog="Exit status: 0 nothing failed, 1 a line failed, 2 nothing was measured. See docs/engines.md.",
    )
    _add_model_options(check, settings)
    add_check_options(check)
    check.set_defaults(command=lambda options: check_engine(options.policy, _model_settings(options), options))
    add_report(commands, settings)
    passcode = commands.add_parser("passcode", help="show the passcode for the sign-in page of this lab")
    passcode.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    passcode.set_defaults(command=_passcode)
    document = commands.add_parser("client-metadata", help="print the client ID metadata document of notebooks")
    document.add_argument("url", help="the https URL where you will publish it")
    document.add_argument("--redirect", action="append", metavar="URI", help="a redirect URI of a notebook")
    document.set_defaults(command=_client_metadata)
    return parser


def _add_model_options(serve: argparse.ArgumentParser, settings: Settings) -> None:
    """Add the policy and the options of `ModelSettings`.

    A model keeps the adapters and the dtype that it was made with, so those options apply to new models.
    """
    defaults = settings.model
    policies = f"{', '.join([*PACKAGED, SMOLLM2])}, a folder, a .gguf file or a hub name (%(default)s)"
    serve.add_argument("--policy", default=settings.policy, help=policies)
    serve.add_argument("--engine", default=defaults.engine, help=f"what computes: {', '.join(engines())} (%(default)s)")
    serve.add_argument("--engine-url", default=defaults.engine_url, metavar="URL", help="its address, if elsewhere")
    serve.add_argument(
        "--sampler-url", default=defaults.sampler_url, metavar="URL", help="a vLLM server that samples for the engine"
    )
    serve.add_argument(
        "--lora-rank", default=defaults.lora_rank, help="rank of new adapters (16 for small policies, 8 for others)"
    )
    serve.add_argument("--lora-alpha", default=defaults.lora_alpha, help="scales them by alpha / rank (twice the rank)")
    serve.add_argument("--lora-targets", default=defaults.lora_targets, help="such as q_proj,v_proj (all-linear)")
    serve.add_argument("--dtype", default=defaults.dtype, help="of the weights: float32, bfloat16 (on cuda bfloat16)")
    serve.add_argument("--device", default=defaults.device, help="cuda, mps or cpu (cuda where there is one)")
    serve.add_argument(
        "--gradient-checkpointing",
        nargs="?",
        const=True,
        default=defaults.gradient_checkpointing,
        help="train in less memory, and for a third longer",
    )
    serve.add_argument("--template-date", default=defaults.template_date, help="printed by chat templates (2024-07-26)")


def _model_settings(options: argparse.Namespace) -> ModelSettings:
    try:
        return ModelSettings(**{name: getattr(options, name) for name in ModelSettings.model_fields})
    except ValidationError as error:
        message, example = explain_error(first := error.errors()[0])
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise InputError(f"{option}: {message}", hint=f"{option}={example}") from None


def _serve(options: argparse.Namespace) -> None:
    from rolloutlab.service.lifecycle import Folder
    from rolloutlab.service.listen import ListenAddress

    options.model = _model_settings(options)
    address = ListenAddress(options.host.lower().strip("[]"), options.tls_cert, options.tls_key)
    folder = Folder(path_of(options.home, "--home DIR").absolute() / "service")
    try:
        # first of all: importing the service takes seconds, and another kernel may start one meanwhile
        folder.claim(timeout=_PROBE_TIMEOUT if options.linger is None else _PREDECESSOR_TIMEOUT)
        _serve_claimed(folder, address, options)
    except OSError as error:
        raise refused(f"{folder.path} cannot be used", error, "--home DIR") from error


def _serve_claimed(folder: "Folder", address: "ListenAddress", options: argparse.Namespace) -> None:
    # torch's threads otherwise spin for long while they wait for each other, and take the cores from other processes
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        from rolloutlab.service.serve import serve
    except ModuleNotFoundError as error:
        raise PolicyError(f"the embedded service needs {error.name}", hint="pip install 'rolloutlab[local]'") from error
    chosen = {"model": options.model, "start_empty": options.start_empty}
    serve(folder, address, options.port, options.policy, options.linger, options.token_lifetime, **chosen)


def _passcode(options: argparse.Namespace) -> None:
    from rolloutlab.service.lifecycle import Folder

    print(Folder(path_of(options.home, "--home DIR").absolute() / "service").passcode())


def _client_metadata(options: argparse.Namespace) -> None:
    try:
        from rolloutlab.service.oauth.client_documents import REDIRECTS, notebook_document
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}", hint="pip install 'rolloutlab[local]'") from error
    print(json.dumps(notebook_document(options.url, options.redirect or REDIRECTS), indent=2))
