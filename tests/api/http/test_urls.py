"""Canonical addresses of resources."""

import pytest

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.errors import InputError


@pytest.mark.clause("E1", "E2", "E3")
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
        ("https://münchen.example/mcp", "https://xn--mnchen-3ya.example/mcp"),
    ],
)
def test_the_canonical_form_has_a_lowercase_scheme_and_host_and_no_trailing_slash(given, expected):
    assert canonical_resource(given) == expected


@pytest.mark.clause("E4", "E5")
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
        "https://x/secret/../mcp",
        "https://x/mcp/.",
        "https://x/secret/%2E%2e/mcp",
        "https://x/./mcp/",
        None,
    ],
)
def test_what_has_no_scheme_or_has_a_fragment_is_no_canonical_address(wrong):
    with pytest.raises(InputError) as error:
        canonical_resource(wrong)
    assert "secret" not in str(error.value) + error.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        "https://a..b/mcp",
        f"https://{'a' * 64}.example/mcp",
        "https://evil.example<.tools.example/mcp",
        "https://evil.example\\.tools.example/mcp",
        "https://tools.example/a\\..\\mcp",
        "https://tools.example/m\ncp",
        "\x1bhttps://tools.example/mcp",
    ],
)
def test_what_can_be_no_host_or_is_read_by_everybody_in_another_way_is_no_address(wrong):
    with pytest.raises(InputError, match="the URL of a server has an "):
        canonical_resource(wrong)
