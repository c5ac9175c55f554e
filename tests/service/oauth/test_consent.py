"""The page that asks the owner of the lab."""

import base64
import re
import threading
from dataclasses import replace

import httpx
import pytest

from rolloutlab.service.lifecycle import Folder


@pytest.fixture
def client_id(visitor):
    return visitor.registers()["client_id"]


@pytest.fixture
def page(visitor, client_id):
    return visitor.asks(client_id)


@pytest.mark.clause("A7", "J6")
def test_an_allowed_request_brings_code_state_and_iss(visitor, page, redirected):
    answer = redirected(visitor.decides(page))
    assert answer.keys() == {"code", "state", "iss"}
    assert answer["state"] == "s-1"
    assert answer["iss"] == visitor.url


def test_a_request_without_state_gets_an_answer_without_state(visitor, client_id, redirected):
    assert "state" not in redirected(visitor.decides(visitor.asks(client_id, state=None)))


@pytest.mark.clause("N17")
def test_the_redirect_hostname_must_be_displayed(visitor):
    uri = "https://notebooks.example:8443/callback"
    shown = visitor.asks(visitor.registers(redirect_uris=[uri])["client_id"], redirect_uri=uri).text
    assert "<strong>notebooks.example:8443</strong>" in shown


def test_scopes_are_shown_in_words(visitor, client_id):
    shown = visitor.asks(client_id, scope="lab:read lab:write").text
    assert "add conversations to this lab, and set rewards" in shown


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "a\u202egnp.exe", "a\nb" * 200],
)
def test_a_hostile_client_name_is_text(visitor, name):
    shown = visitor.asks(visitor.registers(client_name=name)["client_id"]).text
    assert "<script" not in shown
    assert "<img" not in shown
    assert "49" not in re.findall(r"<bdi>(.*?)</bdi>", shown)
    (name,) = re.findall(r"<bdi>(.*?)</bdi>", shown, re.DOTALL)
    assert "\n" not in name
    assert "\u202e" not in name
    assert len(name) < 400


def test_the_page_has_no_script_is_in_no_frame_and_is_kept_by_no_cache(page):
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "base-uri 'none'" in policy
    assert "script-src" not in policy
    assert "<script" not in page.text
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-store"


def test_the_form_may_lead_to_the_client_and_nowhere_else(page):
    assert page.headers["content-security-policy"].endswith("form-action 'self' http://127.0.0.1:7777")


def test_the_page_reads_with_labels_and_a_language(page):
    assert '<html lang="en">' in page.text
    assert '<label for="passcode">' in page.text
    assert "<main>" in page.text


@pytest.mark.clause("N18")
def test_consent_needs_the_passcode(visitor, page, redirected):
    for wrong in ("", "wrong", "abcd-efgh-jkm"):
        answer = visitor.decides(page, passcode=wrong)
        assert answer.status_code == 403
        assert 'role="alert"' in answer.text
    assert "code" in redirected(visitor.decides(page))


def test_a_passcode_that_is_too_short_lets_nobody_in(visit, tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "passcode").write_text("1234")
    visitor = visit(passcode=Folder(tmp_path / "service").passcode)
    answer = visitor.decides(visitor.asks(visitor.registers()["client_id"]), passcode="1234")
    assert answer.status_code == 500
    assert "rolloutlab passcode" in answer.text


def test_a_passcode_may_be_typed_without_dashes_and_in_capitals(visitor, page, redirected):
    assert "code" in redirected(visitor.decides(page, passcode=" ABCD efgh jkmn "))


def test_five_wrong_passcodes_end_a_request(visitor, page, redirected):
    answers = [visitor.decides(page, passcode="wrong") for _ in range(5)]
    assert redirected(answers[-1])["error"] == "access_denied"
    assert visitor.decides(page).status_code == 400


def test_nobody_keeps_the_owner_out_by_wrong_passcodes(visitor, client_id, page, redirected):
    for _ in range(10):
        other = visitor.asks(client_id)
        for _ in range(5):
            visitor.decides(other, passcode="wrong")
    assert "code" in redirected(visitor.decides(page))


def test_nobody_pushes_out_the_request_that_the_owner_looks_at_by_asking_too(visitor, client_id, page, redirected):
    for _ in range(300):
        visitor.asks(client_id)
    assert "code" in redirected(visitor.decides(page))


def test_what_was_allowed_stays_over_however_many_requests_others_have_denied(visitor, client_id, page, redirected):
    redirected(visitor.decides(page))
    with httpx.Client(timeout=240) as browser:
        other = replace(visitor, browser=browser)
        for _ in range(210):
            browser.cookies.clear()  # it could not send that many
            redirected(other.decides(other.asks(client_id), decision="deny"))
    assert visitor.decides(page).status_code == 400


def test_two_pages_in_one_browser_can_both_be_answered(visitor, client_id, page, redirected):
    later = visitor.asks(client_id, state="s-2")
    assert redirected(visitor.decides(page))["state"] == "s-1"
    assert redirected(visitor.decides(later))["state"] == "s-2"


def test_a_denied_consent_is_told_to_the_client_with_iss_and_state(visitor, page, redirected):
    answer = redirected(visitor.decides(page, decision="deny", passcode=""))
    assert answer["error"] == "access_denied"
    assert answer["iss"] == visitor.url
    assert answer["state"] == "s-1"


def test_a_decision_is_made_once(visitor, page, redirected):
    redirected(visitor.decides(page, decision="deny"))
    assert visitor.decides(page).status_code == 400


@pytest.mark.parametrize("passcode", ["abcd-efgh-jkmn", "wrong"])
def test_a_form_that_is_sent_many_times_at_once_is_decided_once(visitor, page, redirected, passcode):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(visitor.decides(page, passcode=passcode))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {303, 400, 403}
    assert sum(answer.status_code == 303 for answer in answers) == 1


def test_a_request_waits_for_ten_minutes(visitor, page):
    visitor.clock.now += 601
    assert visitor.decides(page).status_code == 400


def test_a_form_without_the_mark_of_our_page_is_refused(visitor, page, fields):
    text, mark = fields(page)["request"].split(".")
    for forged in ("", ".", text, f"{text}.", f"{text}.{mark[:-1]}", f"{text}.{'0' * 43}", f"{text}x.{mark}", "é.é"):
        assert visitor.decides(page, request=forged).status_code == 403


def test_a_form_that_another_browser_was_shown_is_refused(visitor, page, fields):
    with httpx.Client(timeout=240) as other:
        filled = {**fields(page), "decision": "allow", "passcode": "abcd-efgh-jkmn"}
        assert other.post(f"{visitor.url}/oauth/consent", data=filled).status_code == 403


def test_a_form_that_another_origin_sends_is_refused(visitor, page, fields):
    filled = {**fields(page), "decision": "allow", "passcode": "abcd-efgh-jkmn"}
    for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
        answer = visitor.post("/oauth/consent", data=filled, headers={"Origin": origin})
        assert answer.status_code == 403


def test_the_mark_of_one_request_is_none_for_another(visitor, client_id, page, fields):
    text, _ = fields(page)["request"].split(".")
    _, mark = fields(visitor.asks(client_id))["request"].split(".")
    assert visitor.decides(page, request=f"{text}.{mark}").status_code == 403


def test_the_cookie_of_one_request_is_none_for_another(visitor, client_id, page):
    mine = page.headers["set-cookie"].partition("=")[0]
    visitor.browser.cookies.clear()
    visitor.asks(client_id)
    (other,) = visitor.browser.cookies.jar
    visitor.browser.cookies.set(mine, str(other.value))
    assert visitor.decides(page).status_code == 403


def test_the_page_holds_no_secret_of_the_client(visitor, fields):
    client = visitor.registers(token_endpoint_auth_method="client_secret_post")
    text, _ = fields(visitor.asks(client["client_id"]))["request"].split(".")
    content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert client["client_id"].encode() in content
    assert client["client_secret"].encode() not in content


def test_the_cookie_is_for_forms_of_our_own_pages_only(page):
    cookie = page.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/oauth" in cookie


@pytest.mark.clause("N14")
def test_no_cookie_stands_for_the_passcode(visitor, client_id, page, redirected):
    redirected(visitor.decides(page))
    assert visitor.decides(visitor.asks(client_id), passcode="").status_code == 403


def test_a_page_is_not_answered_when_another_site_names_itself_as_host(visitor, client_id):
    assert visitor.get("/oauth/authorize", headers={"Host": "evil.example"}).status_code == 400
