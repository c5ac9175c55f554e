"""`python -m rolloutlab`: the command line of `rolloutlab.cli`."""

import sys

from rolloutlab.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
