"""The lab's passcode: who knows it is the owner, and not just anybody who can open a page of ours."""

import secrets


def fits(given: str, right: str) -> bool:
    """Whether it is the passcode, however it is spaced and in whatever case.

    However many wrong ones came before, the right one is taken. There are 31^12 = 8 * 10^17 of them: who tries 10,000
    every second for a year has one chance in two million. To stop looking after wrong ones would not make that less in
    any way that matters, and would let anybody who types wrong ones keep the owner out.
    """
    return secrets.compare_digest(_bare(given), _bare(right))


def _bare(text: str) -> bytes:
    return "".join(text.split()).replace("-", "").lower().encode()
