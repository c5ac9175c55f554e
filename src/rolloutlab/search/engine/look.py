"""A program that says in which of some texts a pattern is found: JSON in, JSON out, standard library only."""

import faulthandler
import json
import re
import sys


def main() -> None:
    """Look; the watchdog ends what would go on when whoever asked was killed meanwhile."""
    asked = json.load(sys.stdin.buffer)
    faulthandler.dump_traceback_later(asked["seconds"], exit=True)
    search = re.compile(asked["pattern"]).search
    json.dump([search(text) is not None for text in asked["texts"]], sys.stdout)


if __name__ == "__main__":
    main()
