"""Where one is signed in, as it is shown."""

from rolloutlab.auth.session import SignInStatus
from rolloutlab.errors import LabError
from rolloutlab.widgets.login.render import SignInTable


def test_the_id_of_a_client_that_holds_all_that_it_registered_is_shown_by_its_beginning():
    def shown(client: str) -> str:
        response = SignInStatus(
            server="https://a.example/mcp",
            authority="a.example",
            client=client,
            scopes=("read",),
            expires_at=None,
            renews=True,
            place="in memory",
        )
        return repr(SignInTable([response])) + SignInTable([response])._repr_html_()

    assert "x" * 58 not in shown("x" * 400)
    assert "x" * 57 + "..." in shown("x" * 400)
    assert "https://example.org/rolloutlab/client.json" in shown("https://example.org/rolloutlab/client.json")


def test_what_is_kept_and_not_used_is_a_line_with_what_to_type():
    shown = SignInTable([], [LabError("others may read /a/b", hint="!rm '/a/b'")])
    assert repr(shown) == "others may read /a/b -> !rm '/a/b'"
    html = shown._repr_html_()
    assert html.index("<b>others may read /a/b</b>") < html.index(">!rm &#x27;/a/b&#x27;</code>")
