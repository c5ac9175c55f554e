"""Plays the browser and the person who consents, so that notebook 08 runs by itself.

`ROLLOUTLAB_BROWSER="python notebooks/browser.py"` has sign-ins hand their address to this program. It opens the consent
page of the embedded service, types the lab's passcode, presses Allow, and goes where the page sends it: what a person
does in notebook 08.
"""

import subprocess
import sys
from html.parser import HTMLParser

import httpx


class Form(HTMLParser):
    """The fields of the page's form."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "form":
            self.action = told["action"] or ""
        elif tag == "input" and told.get("name"):
            self.fields[told["name"] or ""] = told.get("value") or ""


def consent(url: str, passcode: str) -> None:
    """Allow what the page at an address asks for."""
    with httpx.Client() as browser:
        page = browser.get(url)
        if not page.is_success:  # whose address is a secret
            sys.exit(f"the sign-in page answered {page.status_code}")
        form = Form(page.text)
        answered = browser.post(
            page.url.join(form.action),
            data={**form.fields, "passcode": passcode, "decision": "allow"},
            headers={"Origin": f"{page.url.scheme}://{page.url.netloc.decode()}"},
        )
        if "location" not in answered.headers:
            sys.exit(f"the consent was answered {answered.status_code}")
        browser.get(answered.headers["location"])


if __name__ == "__main__":
    passcode = subprocess.check_output([sys.executable, "-m", "rolloutlab", "passcode"], text=True).strip()
    consent(sys.stdin.read().strip(), passcode)
