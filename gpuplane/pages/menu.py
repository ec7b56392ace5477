"""The menu."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from access.choices import Role


@dataclass(frozen=True, slots=True)
class MenuItem:
    """One line of the menu. `count_url`: address of a number that is shown beside it."""

    label: str
    url: str
    icon: str
    active: bool = False
    count_url: str = ""


# label, name of the address, icon, names of views that mark the line as active, name of the address of a count
_PAGES = (
    ("Fleet", "fleet", "fleet", ("fleet",), ""),
    ("Nodes", "nodes", "nodes", ("nodes", "node", "device"), ""),
    ("Usage", "usage", "usage", ("usage", "queue-usage"), ""),
    ("Claims", "claims", "claims", ("claims", "claim", "claim-create"), ""),
    ("Allocations", "allocations", "allocations", ("allocations", "allocation"), ""),
    ("Reservations", "reservations", "lock", ("reservations",), ""),
    ("Queues", "queues", "queues", ("queues", "queue", "gangs", "gang"), ""),
    ("Scaling", "scaling", "nodes", ("scaling",), ""),
    ("Models", "inference", "chip", ("inference", "inference-model", "inference-runners", "inference-slot"), ""),
    ("Pending", "pending", "pending", ("pending", "pending-pod"), "pending-count"),
    ("What-if", "simulate", "simulate", ("simulate",), ""),
    ("Events", "events", "events", ("events",), ""),
)
_ADMINS = (
    ("Accounts", "accounts", "user", ("accounts", "account", "account-create"), ""),
    ("Teams", "teams", "teams", ("teams", "team", "team-create"), ""),
)


def pages(request: HttpRequest) -> list[MenuItem]:
    """The pages; those of `_ADMINS` for admins alone."""
    actor = getattr(request, "actor", None)
    shown = _PAGES + _ADMINS if actor is not None and actor.role == Role.ADMIN else _PAGES
    here = request.resolver_match.view_name if request.resolver_match else ""
    return [
        MenuItem(label, reverse(name), icon, here in names, reverse(count) if count else "")
        for label, name, icon, names, count in shown
    ]


def more(request: HttpRequest) -> list[MenuItem]:
    """Documentation for everybody, Django's admin for staff."""
    items = [MenuItem("API", reverse("api:docs"), "api")]
    if getattr(request.user, "is_staff", False):
        items.append(MenuItem("Admin", reverse("admin:index"), "admin"))
    return items
