"""Whose limits a request counts against: a credential's, however it is written, or those of nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuplane.listeners import bodies
from gpuplane.listeners.body_limits import KIB
from tests.unit.gpuplane.listeners.guard import TOKEN, behind_guard, reader

REST_RUN, PAGE_RUN = "/api/v1/simulations/", "/simulate/"


@pytest.mark.parametrize(
    ("address", "written"),
    [
        pytest.param(REST_RUN, lambda n: {"Authorization": f"Bearer{' ' * (n + 1)}token"}, id="token, spaces"),
        pytest.param(REST_RUN, lambda n: {"Authorization": f"{cased('bearer', n)} token"}, id="token, letter case"),
        pytest.param(
            REST_RUN, lambda n: {"Authorization": "Bearer token", "Cookie": f"sessionid={n}"}, id="token, any cookie"
        ),
        pytest.param(
            REST_RUN,
            lambda n: {"Authorization": f"Other {n}", "Cookie": "sessionid=mine"},
            id="session, scheme that REST ignores",
        ),
        pytest.param(
            PAGE_RUN,
            lambda n: {"Authorization": f"Bearer {n}", "Cookie": "sessionid=mine"},
            id="session, token that pages ignore",
        ),
        pytest.param(PAGE_RUN, lambda n: {"Cookie": f"xsessionid={n}; sessionid=mine"}, id="session, similar name"),
        pytest.param(PAGE_RUN, lambda n: {"Cookie": f"sessionid={n}; sessionid=mine"}, id="session, cookie twice"),
        pytest.param(PAGE_RUN, lambda n: {"Cookie": f"a=b;{' ' * n}sessionid = mine"}, id="session, spaces"),
        pytest.param(
            PAGE_RUN, lambda n: {"Cookie": 'sessionid="mine"' if n % 2 else "sessionid=mine"}, id="session, quoted"
        ),
    ],
)
async def test_a_credential_has_one_rate_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, address: str, written: Callable[[int], dict[str, str]]
) -> None:
    """VIEW-6 what REST and pages take as the same credential has the same rate."""
    monkeypatch.setattr(bodies, "REFUSED_SECONDS", 0.0)
    async with behind_guard(reader) as http:
        statuses = [(await http.post(address, headers=written(number))).status_code for number in range(40)]
    assert statuses.count(200) < 15
    assert set(statuses) == {200, 429}


def cased(word: str, number: int) -> str:
    """The word with upper-case letters where the number has bits."""
    return "".join(letter.upper() if number >> place & 1 else letter for place, letter in enumerate(word))


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        pytest.param("/api/v1/claims/", {"Authorization": "Basic x"}, id="scheme that REST ignores"),
        pytest.param("/api/v1/claims/", {"Authorization": "Bearer"}, id="scheme without a token"),
        pytest.param("/claims/new/", TOKEN, id="token on a page"),
        pytest.param("/claims/new/", {"Cookie": "xsessionid=x"}, id="cookie of a similar name"),
    ],
)
async def test_what_is_no_credential_has_the_limit_of_none(address: str, headers: dict[str, str]) -> None:
    """VIEW-6 a header that nobody checks gives no larger body."""
    async with behind_guard(reader) as http:
        answer = await http.post(address, content=b"x" * (64 * KIB + 1), headers=headers)
    assert answer.status_code == 413
