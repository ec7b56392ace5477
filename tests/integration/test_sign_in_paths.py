"""One path to sign in: of all addresses that the resolver knows, the sign-in page alone takes a password for a
session.
"""

import base64
import re

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import aauthenticate, authenticate
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import URLPattern, get_resolver

from access.attempts import PAIR_MOST
from access.choices import Role
from audit.models import Event
from tests.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.django_db

SAMPLES = {"int": "1", "uuid": "00000000-0000-0000-0000-000000000001"}


def addresses(patterns=None, before=""):
    """Every address of the resolver, with something in place of each argument."""
    for one in get_resolver().url_patterns if patterns is None else patterns:
        route = before + str(one.pattern)
        if isinstance(one, URLPattern):
            plain = re.sub(r"<(?:(\w+):)?\w+>", lambda found: SAMPLES.get(found[1] or "", "x"), route)
            if "(?P" not in plain:
                yield "/" + plain.replace("^", "").replace("$", "").replace("\\Z", "")
        else:
            yield from addresses(one.url_patterns, route)


@pytest.fixture
def root():
    return User.objects.create_superuser("root", password=PASSWORD)


@pytest.mark.parametrize("path", sorted({*addresses(), "/accounts/login/", "/api/auth/login/", "/api-auth/login/"}))
def test_no_other_path_takes_a_password(root, path, monkeypatch):
    """VIEW-6 no session and no answer for a password anywhere but at the sign-in page."""
    looked = []
    plain = User.check_password

    def check_password(user, given):
        looked.append(user)
        return plain(user, given)

    monkeypatch.setattr(User, "check_password", check_password)
    client = Client(raise_request_exception=False)
    basic = base64.b64encode(f"root:{PASSWORD}".encode()).decode()
    form = {"username": "root", "password": PASSWORD, "login": "root", "email": "root", "next": "/"}

    client.post(path, form)
    client.post(path, form, content_type="application/json")
    client.get(path, headers={"Authorization": f"Basic {basic}"})

    assert ("_auth_user_id" in client.session) == (path == "/sign-in/")
    assert bool(looked) == (path == "/sign-in/")


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param("/admin/login/", "/sign-in/?next=/admin/", id="by its own address"),
        pytest.param("/admin/", "/admin/login/?next=/admin/", id="by the first page"),
        pytest.param("/admin/login/?next=/admin/auth/user/", "/sign-in/?next=/admin/auth/user/", id="next is kept"),
        pytest.param("/admin/login/?next=https://evil.example/", "/sign-in/?next=/admin/", id="never elsewhere"),
        pytest.param("/admin/login/?next=//evil.example/", "/sign-in/?next=/admin/", id="nor without a scheme"),
        pytest.param("/admin/login/?next=/%5Cevil.example/", "/sign-in/?next=/admin/", id="nor by a backslash"),
        pytest.param("/admin/login/?next=javascript:alert(1)", "/sign-in/?next=/admin/", id="nor to a script"),
    ],
)
def test_the_admin_leads_to_the_sign_in_page(client, asked, want):
    assert client.get(asked)["Location"] == want
    if "login" in asked:
        assert client.post(asked, {"username": "root", "password": PASSWORD})["Location"] == want


def test_through_the_sign_in_page_into_the_admin(client, root):
    answer = client.post(
        "/sign-in/", {"username": "root", "password": PASSWORD, "next": "/admin/auth/user/"}, follow=True
    )
    assert (answer.status_code, answer.request["PATH_INFO"]) == (200, "/admin/auth/user/")
    assert client.get("/admin/login/?next=/admin/auth/user/")["Location"] == "/admin/auth/user/"


def test_the_admin_is_refused_with_a_reason(client):
    """And not sent to and fro between the two."""
    client.force_login(UserFactory(role=Role.ADMIN))
    answer = client.get("/admin/", follow=True)
    assert answer.status_code == 403
    assert "staff accounts" in answer.content.decode()


FRESH = "a new and quiet river"
TWICE = {"password": FRESH, "again": FRESH}


def test_guesses_at_the_old_password_are_counted(client, root):
    """Whoever finds an open session cannot try passwords without limit in the form for one's own."""
    client.force_login(root)
    for _ in range(PAIR_MOST):
        assert client.post("/password/", {"old": "wrong", **TWICE}).status_code == 400

    answer = client.post("/password/", {"old": PASSWORD, **TWICE})

    assert answer.status_code == 429
    assert int(answer["Retry-After"]) > 0
    assert "Try again in" in answer.content.decode()
    root.refresh_from_db()
    assert root.check_password(PASSWORD)
    assert Client().post("/sign-in/", {"username": "root", "password": PASSWORD}).status_code == 429
    assert Event.objects.filter(kind="access.sign-in-failed", name="root").count() == 2


def test_ones_own_password_is_changed_and_reported(client, root):
    """VIEW-6 this session goes on, the others end."""
    other = Client()
    for browser in (client, other):
        browser.force_login(root)
    assert client.post("/password/", {"old": PASSWORD, **TWICE}).status_code == 302
    root.refresh_from_db()
    assert root.check_password(FRESH)
    assert Event.objects.get().message == "password of root changed"
    assert (client.get("/password/").status_code, other.get("/password/").status_code) == (200, 302)


def test_authenticating_from_async_code_is_counted_too(root):
    request = RequestFactory().post("/")
    for _ in range(PAIR_MOST):
        assert async_to_sync(aauthenticate)(request, username="root", password="wrong") is None
    assert async_to_sync(aauthenticate)(request, username="root", password=PASSWORD) is None
    assert authenticate(request, username="root", password=PASSWORD) is None
