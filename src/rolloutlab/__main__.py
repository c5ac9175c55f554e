"""The command line: `rolloutlab serve`, and what a person needs who signs in to it."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rolloutlab.errors import InputError, LabError, PolicyError, RolloutlabError
from rolloutlab.settings import read_settings

_LOOKED_AT = 0.5
"""Seconds within which a client that only looks whether a service runs has let go of the folder's lock."""
if TYPE_CHECKING:
    from rolloutlab.service.lifecycle import Folder
    from rolloutlab.service.listen import ListenAddress

_PATIENCE = 60.0
"""Seconds that a service started by a notebook waits for the one before it to end."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 when it ended well, 2 when it was refused, 130 when it was interrupted."""
    try:
        options = _parser().parse_args(arguments)
        options.command(options)
    except RolloutlabError as error:
        print("\n".join(error._render_traceback_()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    settings = read_settings()
    parser = argparse.ArgumentParser(prog="rolloutlab", description="Reinforcement learning on language models.")
    commands = parser.add_subparsers(required=True)
    serve = commands.add_parser("serve", help="serve a policy over HTTP: chat completions and training")
    serve.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    serve.add_argument("--host", default="127.0.0.1", help="a name or address of this machine (default: %(default)s)")
    serve.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    serve.add_argument("--policy", default=settings.policy, help="practice, a folder or a hub name (%(default)s)")
    serve.add_argument("--token-lifetime", type=float, default=600.0, help="seconds of an access token (%(default)s)")
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the host (PEM), to serve https")
    serve.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="its key (PEM); other hosts than this machine need both"
    )
    serve.add_argument("--linger", type=float, help="stop after this many seconds without a client (default: never)")
    serve.add_argument(
        "--start-empty",
        action="store_true",
        help="set checkpoints aside where the database lists no model, instead of refusing to start",
    )
    serve.set_defaults(command=_serve)
    passcode = commands.add_parser("passcode", help="show what the sign-in page of this lab asks its owner for")
    passcode.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    passcode.set_defaults(command=_passcode)
    document = commands.add_parser("client-metadata", help="print the document by which sign-in pages know notebooks")
    document.add_argument("url", help="the https address where you will put it")
    document.add_argument("--redirect", action="append", metavar="URI", help="an address that answers may come to")
    document.set_defaults(command=_client_metadata)
    return parser


def _serve(options: argparse.Namespace) -> None:
    """Claim the lab folder first: the imports after it take seconds, and another kernel may be doing the same."""
    from rolloutlab.service.lifecycle import Folder
    from rolloutlab.service.listen import ListenAddress

    door = ListenAddress(options.host.lower().strip("[]"), options.tls_cert, options.tls_key)
    folder = Folder(options.home.expanduser().absolute() / "service")
    try:
        folder.claim(patience=_LOOKED_AT if options.linger is None else _PATIENCE)
        _serve_claimed(folder, door, options)
    except OSError as error:
        raise LabError(f"{folder.path} cannot be used: {error}", hint="--home DIR") from error


def _serve_claimed(folder: "Folder", door: "ListenAddress", options: argparse.Namespace) -> None:
    # torch's threads otherwise spin for long while they wait for each other, at the cost of whoever else would work
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        from rolloutlab.service.serve import serve
    except ModuleNotFoundError as error:
        raise PolicyError(f"the embedded service needs {error.name}", hint="pip install 'rolloutlab[local]'") from error
    lifetime, start_empty = options.token_lifetime, options.start_empty
    serve(folder, door, options.port, options.policy, options.linger, lifetime, start_empty=start_empty)


def _passcode(options: argparse.Namespace) -> None:
    from rolloutlab.service.lifecycle import Folder

    print(Folder(options.home.expanduser().absolute() / "service").passcode())


def _client_metadata(options: argparse.Namespace) -> None:
    try:
        from rolloutlab.service.oauth.client_documents import REDIRECTS, document
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}", hint="pip install 'rolloutlab[local]'") from error
    print(json.dumps(document(options.url, options.redirect or REDIRECTS), indent=2))


if __name__ == "__main__":
    sys.exit(main())
