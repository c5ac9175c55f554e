"""Where the browser is decides by which way an answer comes back."""

import pytest

from rolloutlab.auth.redirect.route import FrontEndContext, RedirectRoute, choose_route, redirect_uri

SERVED = {"JPY_SESSION_NAME": "/notebooks/first.ipynb"}
VSCODE = frozenset({"__vsc_ipynb_file__"})


@pytest.mark.parametrize(
    ("around", "way"),
    [
        (FrontEndContext(True, True, SERVED), RedirectRoute.PAGE),
        (FrontEndContext(True, True, {**SERVED, "JUPYTERHUB_USER": "jo"}), RedirectRoute.PAGE),
        (FrontEndContext(True, True, {"VSCODE_PID": "1"}, VSCODE), RedirectRoute.LOOPBACK),
        (FrontEndContext(True, True, SERVED, VSCODE), RedirectRoute.LOOPBACK),
        (FrontEndContext(True, True, {**SERVED, "TERM_PROGRAM": "vscode"}), RedirectRoute.PAGE),
        (FrontEndContext(True, True, {}), RedirectRoute.LOOPBACK),
        (FrontEndContext(False, True, {}), RedirectRoute.LOOPBACK),
        (FrontEndContext(False, True, SERVED), RedirectRoute.LOOPBACK),
        (FrontEndContext(True, True, {"COLAB_RELEASE_TAG": "release"}), RedirectRoute.PASTE),
        (FrontEndContext(True, False, SERVED), RedirectRoute.NONE),
        (FrontEndContext(False, False, {}), RedirectRoute.NONE),
        (FrontEndContext(True, False, {"COLAB_RELEASE_TAG": "release"}), RedirectRoute.NONE),
    ],
)
def test_the_way_is_found_by_what_is_there(around, way):
    assert choose_route(around) is way


@pytest.mark.parametrize(
    ("origin", "base_url", "found"),
    [
        ("https://hub.example", "/user/jo/", "https://hub.example/user/jo/rolloutlab/callback"),
        ("http://localhost:8888", "/", "http://localhost:8888/rolloutlab/callback"),
        ("http://127.0.0.1:8888", "/", "http://127.0.0.1:8888/rolloutlab/callback"),
        ("http://[::1]:8888", "/", "http://[::1]:8888/rolloutlab/callback"),
    ],
)
def test_the_redirect_uri_is_under_the_address_of_the_notebook(origin, base_url, found):
    assert redirect_uri(origin, base_url) == found


@pytest.mark.clause("N10")
@pytest.mark.parametrize("origin", ["http://lab.example:8888", "http://10.0.0.5:8888", "http://localhost.evil.example"])
def test_redirect_uris_are_https_or_on_this_machine(origin):
    assert redirect_uri(origin, "/") is None


@pytest.mark.parametrize(
    ("origin", "base_url"),
    [
        ("null", "/"),
        ("", "/"),
        ("vscode-webview://abc", "/"),
        ("https://jo@hub.example", "/"),
        ("https://hub.example/path", "/"),
        ("https://hub.example?x=1", "/"),
        ("https://hub.example:port", "/"),
        ("https://[hub", "/"),
        ("https://hub.example", "user/jo"),
        ("https://hub.example", "//evil.example/"),
        ("https://hub.example", "/user/?x=/"),
        ("https://hub.example", "/a b/"),
    ],
)
def test_what_is_no_origin_or_no_path_gives_no_redirect_uri(origin, base_url):
    assert redirect_uri(origin, base_url) is None
