"""Programs in a terminal of their own."""

import signal
from contextlib import suppress

import pexpect


def end(process: "pexpect.spawn[str]") -> None:
    """End a program, also on a busy machine: `close(force=True)` gives a killed one a tenth of a second."""
    with suppress(pexpect.ExceptionPexpect):  # it has ended already
        process.kill(signal.SIGKILL)
        process.wait()
    process.close()
