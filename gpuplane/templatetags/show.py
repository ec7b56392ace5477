"""Template tags and filters: sizes, times, states, bars. No style attributes, which the content policy forbids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from access.actors import Actor
from allocations.cluster_health import cluster_state
from allocations.overviews import conflict_words, devices_in_conflict
from gpuplane.pages import menu
from nodes.models import Device

register = template.Library()

CONFLICTS_SHOWN = 4

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_TAGS = {
    # nodes
    "ready": "ok", "suspect": "warn", "not-ready": "bad", "gone": "quiet",
    # allocations
    "held": "warn", "reserved": "info", "bound": "ok", "releasing": "warn", "released": "quiet", "failed": "bad",
    # groups behind reservation pods
    "wanted": "info", "starting": "info", "unprotected": "bad",
    # slots, runners and requests of models
    "planned": "info", "draining": "warn", "stopped": "quiet", "connected": "ok", "silent": "warn",
    "waiting": "warn", "running": "ok", "done": "quiet", "cancelled": "quiet",
    # claims
    "Pending": "warn", "Allocated": "ok", "Invalid": "bad",
    # devices
    "free": "quiet", "in use": "ok", "shared": "info", "unhealthy": "bad", "vanished": "bad", "taken outside": "warn",
    "closed": "warn", "in MIG mode": "quiet",
    # accounts
    "open": "ok", "shut": "bad",
    # pods of an explanation
    "pending": "warn", "placed": "ok", "refused": "warn", "node not ready": "bad",
}  # fmt: skip

_STORY = {
    "claim.created": "info", "node.registered": "info", "allocation.held": "info", "allocation.reserved": "info",
    "allocation.bound": "ok", "allocation.adopted": "ok", "allocation.released": "", "allocation.releasing": "",
    "allocation.failed": "bad", "allocation.expired": "warn", "allocation.resize-refused": "warn",
    "pod.refused": "warn", "device.health": "warn", "node.health": "warn", "device.taken": "warn",
    "claim.deleted": "bad", "reconcile.difference": "warn", "access.sign-in-failed": "warn",
    "reservation.wanted": "info", "reservation.starting": "info", "reservation.ready": "ok",
    "reservation.adopted": "ok", "reservation.unprotected": "bad", "reservation.failed": "bad",
    "reservation.releasing": "", "reservation.gone": "",
    "slot.planned": "info", "slot.starting": "info", "slot.ready": "ok", "slot.draining": "", "slot.stopped": "",
    "slot.failed": "bad", "model.created": "info", "model.deleted": "bad", "runner.silent": "warn",
    "runner.failed": "bad", "runner.connected": "ok",
}  # fmt: skip


@register.simple_tag
def icon(name: str, classes: str = "") -> SafeString:
    """An icon of static/icons.svg; decoration, so hidden from screen readers."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"></use></svg>', classes, static("icons.svg"), name
    )


@register.simple_tag(takes_context=True)
def page_menu(context: dict[str, Any]) -> dict[str, list[menu.MenuItem]]:
    """The menu as this user sees it on this page."""
    request = context["request"]
    return {"pages": menu.pages(request), "more": menu.more(request)}


@register.filter
def size(value: float | None) -> str:
    """Bytes for people: 80 GiB."""
    if not value:
        return "–" if value is None else "0"
    amount = float(value)
    unit = 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    text = f"{amount:.1f}".removesuffix(".0") if amount < 100 else f"{amount:.0f}"
    return f"{text} {_UNITS[unit]}"


@register.filter
def sizes(amounts: Sequence[int]) -> str:
    """Amounts of several devices: `2 × 80 GiB` where they are equal, else each."""
    if len(amounts) > 1 and len(set(amounts)) == 1:
        return f"{len(amounts)} × {size(amounts[0])}"
    return " + ".join(str(size(amount)) for amount in amounts)


@register.filter
def percent(part: float | None, whole: float | None) -> int:
    """Whole percent of part in whole; 0 where there is nothing."""
    return round(100 * (part or 0) / whole) if whole else 0


@register.filter
def ago(value: datetime | None) -> SafeString | str:
    """How long ago, or how long until, with the exact time as a tooltip."""
    if value is None:
        return "–"
    seconds = (timezone.now() - value).total_seconds()
    words = span(abs(seconds))
    text = "just now" if abs(seconds) < 2 else f"{words} ago" if seconds > 0 else f"in {words}"
    exact = value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), exact, text)


@register.filter
def span(seconds: float | None) -> str:
    """A duration in its one or two largest units."""
    if seconds is None:
        return "–"
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {smaller}" if rest and whole < 10 * length else "")
    return f"{whole} s"


@register.filter
def tag(state: str, label: str = "") -> SafeString:
    """A state as a shape and a word."""
    return format_html('<span class="tag tag-{}"><i></i>{}</span>', _TAGS.get(str(state), "quiet"), label or state)


@register.simple_tag
def link_end(remote: str, neighbours: Mapping[str, int]) -> str:
    """What is at the far end of an NVLink, for people; `neighbours`: UUID → minor of the node's devices."""
    if remote in neighbours:
        return f"GPU {neighbours[remote]}"
    return {"switch": "NVSwitch", "": "–"}.get(remote, remote)


@register.filter
def story(kind: str) -> str:
    """Class of an event in a timeline."""
    return _STORY.get(str(kind), "")


@register.simple_tag
def bar(part: float | None, whole: float | None, label: str = "", classes: str = "") -> SafeString:
    """One bar: part of whole."""
    return _bar([(percent(part, whole), "used", label)], label, classes)


@register.simple_tag
def bars(parts: Sequence[tuple[float, str, str]], label: str = "", classes: str = "") -> SafeString:
    """A stacked bar of (percent, class, title) parts."""
    return _bar(parts, label, classes)


def _bar(parts: Iterable[tuple[float, str, str]], label: str, classes: str) -> SafeString:
    start = 0.0
    drawn: list[tuple[str, str, str, str]] = []
    for width, css_class, title in parts:
        if width <= 0:
            continue
        shown = min(width, 100 - start)
        drawn.append((f"{start:g}", f"{max(0.0, shown - (0.6 if start + shown < 100 else 0)):g}", css_class, title))
        start += shown
    rects = format_html_join(
        "", '<rect x="{}%" y="0" width="{}%" height="100%" class="{}"><title>{}</title></rect>', drawn
    )
    return format_html(
        '<svg class="bar {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>', classes, label, rects
    )


@register.inclusion_tag("parts/sort.html", takes_context=True)
def sort_head(context: dict[str, Any], key: str, label: str, classes: str = "") -> dict[str, Any]:
    """A column head that sorts by `key`, or in reverse if the table already does."""
    now = context.get("sort", "")
    return {
        "request": context["request"],
        "label": label,
        "classes": classes,
        "next": f"-{key}" if now == key else key,
        "direction": "ascending" if now == key else "descending" if now == f"-{key}" else "",
    }


@register.filter
def sum_of(rows: Iterable[dict[str, int]], key: str) -> int:
    """The sum of one value of each row."""
    return sum(row[key] for row in rows)


@register.filter
def moment(text: str) -> datetime:
    """A time written as ISO 8601."""
    return datetime.fromisoformat(text)


@register.filter
def in_brackets(text: str) -> str:
    """The text in brackets of a summary: `n1: gpu 0,1 (one island, score 1850)` → `one island, score 1850`."""
    return text[text.find("(") + 1 : text.rfind(")")] if "(" in text and ")" in text else ""


@register.inclusion_tag("parts/stale.html")
def stale_cluster() -> dict[str, Any]:
    """A banner while the API server does not answer, since the page may be out of date."""
    sighting = cluster_state()
    return {"sighting": sighting if sighting is not None and sighting.stale(timezone.now()) else None}


@register.inclusion_tag("parts/conflicts.html")
def conflicts() -> dict[str, Any]:
    """A banner while pods run with devices that the ledger gave to others: a few of the devices, and their number."""
    found = devices_in_conflict()
    return {"devices": found[:CONFLICTS_SHOWN], "more": len(found) - CONFLICTS_SHOWN, "count": len(found)}


@register.filter
def conflict_of(device: Device, actor: Actor) -> str:
    """The pods that run with a device in conflict, for this reader."""
    return ", ".join(conflict_words(device, actor))
