"""The pages in the menu. A page is listed when its address exists."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse


@dataclass(frozen=True, slots=True)
class MenuItem:
    """One line of the menu. `prefix` of a view's name marks the line as the present page."""

    label: str
    url: str
    icon: str
    active: bool = False
    count_url: str = ""


_PAGES = (
    ("Fleet", "fleet", "fleet", ("fleet",), ""),
    ("Nodes", "nodes", "nodes", ("nodes", "node", "device"), ""),
    ("Usage", "usage", "usage", ("usage",), ""),
    ("Claims", "claims", "claims", ("claims", "claim", "claim-create"), ""),
    ("Allocations", "allocations", "allocations", ("allocations", "allocation"), ""),
    ("Pending", "pending", "pending", ("pending", "pending-pod"), "pending-count"),
    ("What-if", "simulate", "simulate", ("simulate",), ""),
    ("Events", "events", "events", ("events",), ""),
)
_MORE = (("API", "api:docs", "api", False), ("Admin", "admin:index", "admin", True))


def pages(request: HttpRequest) -> list[MenuItem]:
    """The lines above."""
    here = request.resolver_match.view_name if request.resolver_match else ""
    return [
        MenuItem(label, reverse(name), icon, here in names, reverse(count) if count else "")
        for label, name, icon, names, count in _PAGES
    ]


def more(request: HttpRequest) -> list[MenuItem]:
    """Documentation for everybody, administration for staff."""
    staff = bool(getattr(request.user, "is_staff", False))
    found = []
    for label, name, icon, staff_only in _MORE:
        if staff_only and not staff:
            continue
        try:
            found.append(MenuItem(label, reverse(name), icon))
        except NoReverseMatch:
            continue
    return found
