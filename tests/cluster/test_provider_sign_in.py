"""Sign-in at a real OpenID provider, a program of a certified library, with a real browser and the real web process.

It stands here since the provider is built by `make cluster-tools`; it needs no Kubernetes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect, sync_playwright
from pytest_django.plugin import DjangoDbBlocker

from access.choices import Role
from access.selectors import role_of
from audit.models import Event
from tests.cluster.controlplane.program import Program, free_ports, listens
from tests.cluster.controlplane.tools import program
from tests.factories import PASSWORD, TeamFactory, UserFactory
from tests.servers import redis, web

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PEOPLE = {
    "id1": {"ID": "id1", "Username": "ada", "Password": "verysecure", "Groups": ["platform", "research"]},
    "id2": {"ID": "id2", "Username": "bob", "Password": "verysecure", "Groups": ["strangers"]},
}


@dataclass
class Signing:
    """A page, gpuplane's address, and the provider."""

    page: Page
    url: str
    provider: Program
    people: Path

    def groups(self, **given: list[str]) -> None:
        """The provider has these groups from now on."""
        people = {id_: one | {"Groups": given.get(str(one["Username"]), one["Groups"])} for id_, one in PEOPLE.items()}
        self.people.write_text(json.dumps(people))

    def sign_in(self, name: str, *, at: str = "/nodes/") -> None:
        """By the button, and the provider's own form."""
        self.page.goto(f"{self.url}{at}")
        self.page.get_by_role("link", name="Sign in with Zitadel").click()
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill("verysecure")
        self.page.get_by_role("button", name="Login").click()


@pytest.fixture
def signing(servers: Callable[[], Signing]) -> Iterator[Signing]:
    """In a browser profile of its own: no page of an earlier test goes on there."""
    found = servers()
    with found.page.context:
        yield found


@pytest.fixture(scope="module")
def servers(
    chromium: str, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Callable[[], Signing]]:
    """Opens a new page; gpuplane, the provider and the browser run."""
    folder = tmp_path_factory.mktemp("provider")
    (port,) = free_ports(1)
    corp = {
        "id": "zitadel",
        "name": "Zitadel",
        "issuer": f"http://localhost:{port}/",
        "clientId": "web",
        "roles": {"admin": ["platform"]},
        "defaultRole": "none",
        "teams": {"red": ["research"]},
    }
    settings = {"GPUPLANE_OIDC": json.dumps([corp]), "GPUPLANE_OIDC_SECRETS": '{"zitadel": "secret"}'}
    with (
        django_db_blocker.unblock(),
        web.running(
            vendor="sqlite", folder=folder, redis_url=redis.server_url("web"), settings=settings, is_forked=True
        ) as app,
        sync_playwright() as playwright,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's own loop runs in this thread
        people = folder / "people.json"
        people.write_text(json.dumps(PEOPLE))
        environment = {
            "PORT": str(port),
            "USERS_FILE": str(people),
            "REDIRECT_URI": f"{app.url}/sign-in/with/zitadel/callback/",
            "SIGNED_OUT_URI": f"{app.url}/sign-in/",
        }
        provider = Program(
            "oidc-provider",
            [program("oidc-provider")],
            folder=folder,
            environment=lambda: environment,
            ready=lambda: listens(port),
        )
        provider.start()
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield lambda: Signing(started.new_page(), app.url, provider, people)
        finally:
            started.close()
            provider.stop()


def test_the_whole_way(signing: Signing) -> None:
    """VIEW-6b role and teams by groups and in step with them, sign-out there, and a refusal."""
    red = TeamFactory(name="red")
    page = signing.page

    signing.sign_in("ada")
    expect(page).to_have_url(f"{signing.url}/nodes/")
    ada = User.objects.get(username="ada")
    assert (role_of(ada), list(ada.teams.all())) == (Role.ADMIN, [red])

    page.get_by_role("button", name="Account of ada").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile(rf"{signing.url}/sign-in/"))
    page.goto(f"{signing.url}/nodes/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    signing.groups(ada=["research"])
    signing.sign_in("ada")
    expect(page.get_by_role("alert")).to_contain_text("None of your groups may use gpuplane")
    assert role_of(User.objects.get(username="ada")) == Role.ADMIN  # a refused sign-in changes nothing
    signing.groups(ada=["platform"])
    signing.sign_in("ada")
    expect(page).to_have_url(f"{signing.url}/nodes/")
    assert list(User.objects.get(username="ada").teams.all()) == []
    assert Event.objects.filter(message="ada signed in by zitadel").count() == 2


def test_the_provider_is_away(signing: Signing) -> None:
    """VIEW-6b the page says so, and a local account still opens."""
    UserFactory(username="admin", role=Role.ADMIN)
    signing.provider.stop()
    try:
        signing.page.goto(f"{signing.url}/nodes/")
        signing.page.get_by_role("link", name="Sign in with Zitadel").click()
        # what the provider said before is known for minutes: the browser finds nobody there
        signing.page.wait_for_url("chrome-error://chromewebdata/")
        signing.page.goto(f"{signing.url}/sign-in/")
        signing.page.get_by_label("User name").fill("admin")
        signing.page.get_by_label("Password").fill(PASSWORD)
        signing.page.get_by_role("button", name="Sign in", exact=True).click()
        expect(signing.page).to_have_url(f"{signing.url}/")
    finally:
        signing.provider.start()
