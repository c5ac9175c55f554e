"""Which addresses of servers are taken, and which are trusted with a code."""

import pytest

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.urls import check_endpoint, check_server, covers
from rolloutlab.errors import InputError, SignInError


def test_an_address_without_its_https_is_hinted_with_it():
    with pytest.raises(InputError) as bare:
        canonical_resource("tools.example/mcp")
    with pytest.raises(InputError) as open_to_all:
        check_server("http://tools.example/mcp")
    assert bare.value.hint == open_to_all.value.hint == "%login https://tools.example/mcp"


def test_a_server_elsewhere_has_to_be_encrypted():
    assert check_server("http://127.0.0.1:8000/mcp") == "http://127.0.0.1:8000/mcp"
    with pytest.raises(InputError, match="not encrypted"):
        check_server("http://tools.example/mcp")


@pytest.mark.clause("N9")
@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/token",
        "http://127.0.0.1/token",
        "https://jo@login.example/",
        "https://x/#y",
        "//x/y",
        "https://x:0x50",
        "https://a..b/token",
        f"https://{'a' * 64}.example/token",
        "https://evil.example\\.login.example/token",
        "https://lоgin.example/token",  # noqa: RUF001 - a Cyrillic letter
    ],
)
def test_all_authorization_server_endpoints_use_https(url):
    with pytest.raises(SignInError):
        check_endpoint("token endpoint", url, "https://tools.example/mcp")


def test_endpoints_on_this_machine_are_for_servers_on_this_machine():
    assert check_endpoint("token endpoint", "http://localhost:9000/token", "http://127.0.0.1:8000/mcp")


def test_a_resource_covers_what_lies_below_it_and_nothing_beside_it():
    assert covers("https://a.example/mcp", "https://a.example/mcp/sub?x=1")
    assert covers("https://a.example", "https://a.example/mcp")
    assert not covers("https://a.example/mcp", "https://a.example/mcp2")
    assert not covers("https://a.example/mcp", "https://b.example/mcp")
    assert not covers("https://a.example/mcp", "http://a.example/mcp")
