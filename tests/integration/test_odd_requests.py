"""Cookies and charsets that no browser sends: never a fault, also from somebody who is not signed in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from access.choices import Role
from access.models import Team
from tests.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.usefixtures("ledger_db")
FORMS: dict[str, dict[str, str]] = {
    "/sign-in/": {"username": "ada", "password": PASSWORD},
    "/accounts/new/": {"kind": "person", "username": "olga", "role": "viewer", "password": "x", "again": "x"},
    "/teams/new/": {"name": "red", "namespaces": "a"},
    "/tokens/": {"scope": "agent", "account": "m", "node": "n1"},
    "/claims/new/": {"manifest": "a"},
    "/simulate/": {"scenario": "a"},
    "/theme/": {"theme": "dark"},
    "/api/v1/teams/": {"name": "red"},
}


def browser() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(UserFactory(username="ada", role=Role.ADMIN))
    return client


def multipart(client: Client, path: str, media_type: str, fields: dict[str, str]) -> Any:
    parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    return client.generic("POST", path, "".join([*parts, "--x--\r\n"]).encode(), content_type=media_type)


@pytest.mark.parametrize(
    "cookie",
    [
        pytest.param('sessionid="\\000aaaaaaaaaaaaaaa"', id="a session of a NUL"),
        pytest.param('sessionid="\\355\\240\\200aaaaaaaaaaaa"', id="a session of a surrogate"),
        pytest.param("sessionid=" + "A" * 32, id="a session of other letters"),
        pytest.param("sessionid=" + "a" * 4000, id="a long session"),
        pytest.param("sessionid=", id="an empty session"),
        pytest.param('csrftoken="\\000a"', id="another cookie of a NUL"),
    ],
)
@pytest.mark.parametrize(
    ("path", "want"), [("/", 302), ("/sign-in/", 200), ("/api/v1/nodes/", 401), ("/admin/", 302), ("/livez", 200)]
)
def test_a_cookie_that_was_made_up(cookie: str, path: str, want: int) -> None:
    """VIEW-6 signs nobody in, and is no fault."""
    answer = Client(raise_request_exception=False).get(path, headers={"Cookie": cookie})
    assert answer.status_code == want


def test_a_session_still_counts() -> None:
    """VIEW-6 a key as Django makes it."""
    client = browser()
    assert client.get("/").status_code == 200
    client.cookies["sessionid"] = client.cookies["sessionid"].value + "\x00"
    assert client.get("/").status_code == 302


@pytest.mark.parametrize("charset", ["base64", "utf-7", "utf-16", "latin-1", "utf-8-sig", "none-of-these", '""'])
@pytest.mark.parametrize("path", FORMS)
def test_a_form_in_another_charset(path: str, charset: str) -> None:
    """VIEW-6 is refused with 400, whatever page it is for, and changes nothing."""
    client = Client(raise_request_exception=False) if path == "/sign-in/" else browser()
    media_type = f"multipart/form-data; boundary=x; charset={charset}"
    fields = dict.fromkeys(FORMS[path], "+2AA-") if charset == "utf-7" else FORMS[path]
    assert multipart(client, path, media_type, fields).status_code == 400
    text = f"application/x-www-form-urlencoded; charset={charset}"
    assert client.generic("POST", path, b"name=red", content_type=text).status_code == 400
    assert not Team.objects.exists()


@pytest.mark.parametrize("charset", ["; charset=utf-8", "; charset=UTF8", '; charset="utf-8"', ""])
def test_a_form_in_utf_8(charset: str) -> None:
    """VIEW-6 however its charset is spelt, or with none."""
    media_type = f"multipart/form-data; boundary=x{charset}"
    assert multipart(browser(), "/teams/new/", media_type, FORMS["/teams/new/"]).status_code == 302
    assert Team.objects.get().name == "red"


def test_a_charset_of_json_does_not_matter() -> None:
    """VIEW-5 JSON is UTF-8 (RFC 8259)."""
    answer = browser().generic(
        "POST", "/api/v1/teams/", b'{"name": "red"}', content_type="application/json; charset=base64"
    )
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        pytest.param("a" * 32, True, id="as Django makes it"),
        pytest.param("\x00" + "a" * 31, False, id="a NUL"),
        pytest.param("\ud800" + "a" * 31, False, id="a surrogate"),
        pytest.param("A" * 32, False, id="other letters"),
        pytest.param("a" * 31 + "\n", False, id="a line's end"),
        pytest.param("a" * 65, False, id="too long"),
    ],
)
def test_session_keys(key: str, kept: bool) -> None:
    """VIEW-6 of pages, REST and WebSockets: what is no key is not asked for."""
    engine = import_module(settings.SESSION_ENGINE)
    assert engine.SessionStore(key).session_key == (key if kept else None)
