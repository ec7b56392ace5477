"""Every address that Django serves, with every parameter that it reads, and values that nobody means: never a 5xx
(VIEW-5).

The walk is generated: patterns from the resolver, query parameters of REST from the OpenAPI document, those of pages
from the code that reads them. A path or parameter that is added is walked without being named here.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.generators import SchemaGenerator

from access.choices import Role
from tests.factories import NodeFactory, UserFactory

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("access", "allocations", "audit", "autoscaling", "claims", "gpuplane", "inference", "nodes")
ODD = (
    "",
    "\x00",
    "a\x00b",
    "\n",
    "\r\nX-Injected: y",
    "-1",
    "0",
    "1.5",
    "NaN",
    "1e400",
    "9" * 25,
    "9" * 5000,
    "²",
    "१",
    "'",
    "\\",
    "%",
    "[]",
    "{}",
    "null",
    "true",
    "💥",
    "\ud7ff",
    "\uffff",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2026-13-45T99:99:99Z",
    "00000000-0000-0000-0000-000000000000",
    "../../etc",
    "a" * 3000,
    "model:",
    ":",
    ",",
    "__",
    "n1",
)
FEW = (
    "",
    "\x00",
    "\n",
    "-1",
    "9" * 25,
    "²",
    "\\",
    "{}",
    "\uffff",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "a" * 3000,
)
RAW = ("%ff", "%C0%80", "%ED%A0%80", "%", "%zz", "+", "&=&", "a[]=1&a[]=2", ";", "%2500")
"""Of a query, as they stand."""
ADMIN = ("q", "o", "p", "e", "all", "id__exact", "user__id__exact", "_to_field", "_popup", "next", "nonsense")
CALLS = frozenset({"query_word", "query_words", "get", "getlist"})


def routes(patterns: list[Any], before: str = "") -> Iterator[str]:
    """Every address, with `<converter:name>` where something is filled in."""
    for one in patterns:
        route = getattr(one.pattern, "_route", None)
        if route is None:
            route = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"<path:\1>", str(one.pattern)).strip("^$").replace("\\Z", "")
        if isinstance(one, URLResolver):
            yield from routes(one.url_patterns, before + route)
        elif isinstance(one, URLPattern):
            yield before + route


def filled(route: str, values: tuple[str, ...]) -> Iterator[str]:
    """The address with something usual, and with each odd value in each place."""
    usual = {"str": "n1", "int": "1", "uuid": "00000000-0000-0000-0000-000000000000", "path": "x", "slug": "x"}
    places = re.findall(r"<(?:(\w+):)?(\w+)>", route)

    def put(parts: list[str]) -> str:
        rest = iter(parts)
        return "/" + re.sub(r"<[^>]*>", lambda _: quote(next(rest), safe=""), route)

    plain = [usual[kind or "str"] for kind, _ in places]
    yield put(plain)
    for place, odd in itertools.product(range(len(places)), values):
        yield put([odd if number == place else part for number, part in enumerate(plain)])


def parameters_of_pages() -> set[str]:
    """Every name that code reads from a query: `query_words(request, search="q")`, `request.GET.get("page")`."""
    found: set[str] = set()
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in CALLS:
                    text = ast.unparse(node.func)
                    if text.startswith("query_word") or ".GET." in text or "query_params" in text:
                        values = [*node.args, *(keyword.value for keyword in node.keywords)]
                        names = [one.value for one in values if isinstance(one, ast.Constant)]
                        found.update(name for name in names if isinstance(name, str))
    return found


def parameters_of_rest() -> dict[str, set[str]]:
    """Address of the OpenAPI document → names of its query parameters, by whichever method."""
    document = SchemaGenerator().get_schema(request=None, public=True)
    return {
        path: {
            one["name"]
            for operation in operations.values()
            if isinstance(operation, dict)
            for one in operation.get("parameters", ())
            if one["in"] == "query"
        }
        for path, operations in document["paths"].items()
    }


def addresses() -> Iterator[str]:
    """All of them. Each REST parameter by itself, since the first that is refused hides the others; those of a page,
    which refuses none, at once.
    """
    rest = {re.sub(r"\{\w+\}", "n1", path): names for path, names in parameters_of_rest().items()}
    pages = parameters_of_pages()
    assert {"q", "group", "page", "range"} <= pages, "what pages read is found in their code"
    assert any("cursor" in names for names in rest.values()), "what REST reads is found in its document"
    for route in routes(get_resolver().url_patterns):
        admin = route.startswith("admin/")
        found = list(filled(route, FEW if admin else ODD))
        yield from found
        if found[0].startswith("/api/v1/"):
            asked = [{name: odd} for name in sorted(rest.get(found[0], set())) for odd in FEW]
        elif found[0].startswith("/api/"):
            asked = [{name: odd} for name in ("version", "lang", "format") for odd in ("\n", "-1", "\x00")]
        else:
            asked = [dict.fromkeys(ADMIN if admin else pages, odd) for odd in (FEW if admin else ODD)]
        yield from (f"{found[0]}?{urlencode(query)}" for query in asked)
        yield from (f"{found[0]}?{raw}" for raw in (RAW[:1] if admin else RAW))


def signed_in(ledger_db: Any) -> Client:
    NodeFactory(name="n1", gpus=2)
    client = Client(raise_request_exception=False)
    client.force_login(UserFactory(role=Role.ADMIN, is_staff=True, is_superuser=True))
    return client


@pytest.mark.heavy
def test_no_address_is_a_fault(ledger_db: Any) -> None:
    """VIEW-5 whatever stands in path and query, on both databases."""
    client = signed_in(ledger_db)
    walked, faults = 0, []
    for address in addresses():
        answer = client.get(address)
        walked += 1
        if answer.status_code >= 500:
            faults.append((answer.status_code, address[:200]))
    assert walked > 2000
    assert faults == []


def test_no_write_is_a_fault(ledger_db: Any) -> None:
    """VIEW-5 the same for methods that write, with a body that says nothing."""
    client = signed_in(ledger_db)
    faults = []
    for route in routes(get_resolver().url_patterns):
        if not route.startswith("api/v1/"):
            continue
        for address, method in itertools.product(filled(route, FEW), ("POST", "PUT", "PATCH", "DELETE")):
            answer = client.generic(method, address, b"{}", content_type="application/json")
            if answer.status_code >= 500:
                faults.append((answer.status_code, method, address[:200]))
    assert faults == []


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("path", "media"),
    [
        pytest.param("/", "text/html", id="a page"),
        pytest.param("/sign-in/", "text/html", id="sign-in"),
        pytest.param("/admin/", "text/html", id="the admin"),
        pytest.param("/api/v1/nodes/", "application/problem+json", id="REST"),
        pytest.param("/api/schema/", "application/problem+json", id="the document"),
    ],
)
def test_another_host_name(ledger_db: Any, path: str, media: str, caplog: pytest.LogCaptureFixture) -> None:
    """VIEW-5 is refused with 400, in the form of the place, and with one line in the log."""
    answer = Client(raise_request_exception=False).get(path, headers={"host": "evil.example"})
    assert (answer.status_code, answer["Content-Type"].split(";")[0]) == (400, media)
    assert "host name" in answer.content.decode()
    said = [record for record in caplog.records if record.name.startswith("django.")]
    assert ["evil.example" in record.getMessage() for record in said] == [True]
    assert [record.exc_info for record in said] == [None]
