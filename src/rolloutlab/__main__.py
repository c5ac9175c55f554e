"""The command line: `rolloutlab serve`."""

import argparse
import os
import sys
from pathlib import Path

from rolloutlab.errors import PolicyError, RolloutlabError
from rolloutlab.settings import read_settings

_PATIENCE = 60.0
"""Seconds that a service started by a notebook waits for the one before it to end."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 when it ended well, 2 when it was refused, 130 when it was interrupted."""
    try:
        options = _parser().parse_args(arguments)
        _serve(options)
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
    serve = commands.add_parser("serve", help="serve a policy over HTTP on 127.0.0.1: chat completions and training")
    serve.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    serve.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    serve.add_argument("--policy", default=settings.policy, help="practice, a folder or a hub name (%(default)s)")
    serve.add_argument("--linger", type=float, help="stop after this many seconds without a client (default: never)")
    return parser


def _serve(options: argparse.Namespace) -> None:
    """Claim the lab folder first: the imports after it take seconds, and another kernel may be doing the same."""
    from rolloutlab.service.lifecycle import Folder

    folder = Folder(options.home.expanduser().absolute() / "service")
    folder.claim(patience=0.0 if options.linger is None else _PATIENCE)
    # torch's threads otherwise spin for long while they wait for each other, at the cost of whoever else would work
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        from rolloutlab.service.serve import serve
    except ModuleNotFoundError as error:
        raise PolicyError(f"the embedded service needs {error.name}", hint="pip install 'rolloutlab[local]'") from error
    serve(folder, options.port, options.policy, options.linger)


if __name__ == "__main__":
    sys.exit(main())
