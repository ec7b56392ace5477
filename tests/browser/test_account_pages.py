"""Accounts and teams in a real browser: a team, an account in it, another role, shut."""

from __future__ import annotations

from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from access.choices import Role
from access.selectors import actor_of
from tests.browser.conftest import SignIn


def test_a_team_an_account_in_it_another_role_and_shut(sign_in: SignIn, complaints: list[str]) -> None:
    """VIEW-6 the way of an admin, asked before what cannot be undone."""
    page: Page = sign_in(Role.ADMIN)
    page.get_by_role("link", name="Teams").click()
    page.get_by_role("link", name="New team").click()
    page.get_by_label("Name", exact=True).fill("Red Team")
    page.get_by_label("Namespaces").fill("r1 r2")
    page.get_by_role("button", name="Create team").click()
    expect(page.locator("#name-problem")).to_contain_text("DNS-1123")
    complaints[:] = [said for said in complaints if "400" not in said]  # the form that was refused
    page.get_by_label("Name", exact=True).fill("red")
    page.get_by_role("button", name="Create team").click()
    expect(page.locator("h1")).to_have_text("red")

    page.get_by_role("link", name="Accounts").click()
    page.get_by_role("link", name="New account").click()
    expect(page.get_by_label("Its tokens open")).to_be_hidden()
    page.get_by_label("a machine").check()
    expect(page.get_by_label("New password")).to_be_hidden()
    page.get_by_label("Its tokens open").select_option("agent")
    expect(page.get_by_label("Node")).to_be_visible()
    page.get_by_label("a person").check()
    page.get_by_label("Name", exact=True).fill("olga")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("red").check()
    page.get_by_label("New password").fill("a new and quiet river")
    page.get_by_label("The same again").fill("a new and quiet river")
    page.get_by_role("button", name="Create account").click()
    expect(page.locator("h1")).to_have_text("olga")

    page.get_by_label("Role").select_option("operator")
    page.get_by_role("button", name="Set role").click()
    expect(page.get_by_role("status").last).to_contain_text("olga is operator now")
    olga = User.objects.get(username="olga")
    assert (actor_of(olga).role, actor_of(olga).namespaces) == (Role.OPERATOR, frozenset({"r1", "r2"}))

    page.get_by_role("button", name="Shut account").click()
    page.get_by_role("button", name="Cancel").click()
    assert User.objects.get(pk=olga.pk).is_active
    page.get_by_role("button", name="Shut account").click()
    page.get_by_role("button", name="Shut", exact=True).click()
    expect(page.get_by_role("button", name="Open account")).to_be_visible()
    assert not User.objects.get(pk=olga.pk).is_active
