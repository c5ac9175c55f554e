"""Canonical addresses of resources."""

import pytest

from rolloutlab.errors import InputError
from rolloutlab.resource import canonical


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://tools.example/mcp", "https://tools.example/mcp"),
        ("HTTPS://Tools.EXAMPLE/MCP", "https://tools.example/MCP"),
        ("https://tools.example/", "https://tools.example"),
        ("https://tools.example/mcp/", "https://tools.example/mcp"),
        ("https://tools.example:443/mcp", "https://tools.example/mcp"),
        ("https://tools.example:8443/mcp", "https://tools.example:8443/mcp"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_the_canonical_form_has_a_lowercase_scheme_and_host_and_no_trailing_slash(given, expected):
    assert canonical(given) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "tools.example/mcp",
        "https://tools.example/mcp#part",
        "https://tools.example/mcp#",
        "https://",
        "ftp://x/y",
        "https://jo:secret@x/y",
        "https://x:99999",
        "https://x/y?token=secret",
        None,
    ],
)
def test_what_has_no_scheme_or_has_a_fragment_is_no_canonical_address(wrong):
    with pytest.raises(InputError) as error:
        canonical(wrong)
    assert "secret" not in str(error.value) + error.value.hint
