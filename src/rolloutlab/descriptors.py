"""Whether this process can open another file or connection, and what to type when it cannot."""

import errno
import os

NONE_LEFT = "this process has no file descriptor left"
TO_HAVE_MORE = (
    "close files that the notebook has open, or restart the kernel; ulimit -n 4096 before Jupyter starts allows more"
)
_NEEDED = 3
"""Of SQLite, for a file, its journal and what its processes share."""


def short_of_descriptors(error: BaseException) -> bool:
    """Whether an error of the operating system says so."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def any_left() -> bool:
    """Whether SQLite could open a file now: of its own errors none says that it could not for want of descriptors."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_NEEDED))
    except OSError as error:
        if short_of_descriptors(error):
            return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True
