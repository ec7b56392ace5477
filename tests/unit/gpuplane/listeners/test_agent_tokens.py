"""Agents that sign in by a ServiceAccount's token: who is let in, for which node, and how often the API server is
asked.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.listeners import reviewed_tokens
from gpuplane.listeners.agent_tokens import AgentTokens
from gpuplane.listeners.answers import Refused
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.reviewed_tokens import (
    ALL_FAILURES,
    FAILURES,
    FRESH_SECONDS,
    MOST_KNOWN,
    REFUSED_SECONDS,
    ReviewFailed,
    is_jwt,
)
from gpuplane.listeners.threads import Busy, Lane, Lanes
from kube.client import Cluster
from kube.errors import TemporaryKubeError
from kube.token_reviews import Reviewed

AGENTS = "system:serviceaccount:gpuplane-system:gpuplane-agent"
NOW = 1_800_000_000.0


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def jwt(signature: str = "c2lnbmF0dXJl", *, head: Any = None, **claims: Any) -> str:
    """A token that looks like one of an agent, but for what is given."""
    told = {"iss": "https://kubernetes.default.svc", "sub": AGENTS, "aud": ["gpuplane"], "exp": NOW + 3600, **claims}
    return ".".join((part(head or {"alg": "RS256", "kid": "one"}), part(told), signature))


TOKEN = jwt()
OTHER = jwt("b3RoZXI")


def numbered(number: int) -> str:
    return jwt(part(number))


class World:
    """The API server's answers by token, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, Reviewed | None] = {TOKEN: Reviewed(AGENTS, "n1")}
        self.away = False
        self.hold: threading.Event | None = None
        monkeypatch.setattr(reviewed_tokens, "review", self._review)
        self.tokens = AgentTokens(
            lambda: cast("Cluster", self), "gpuplane", account=AGENTS, clock=lambda: self.now, wall=lambda: NOW
        )

    def _review(self, _cluster: object, *, token: str, audience: str, timeout: float) -> Reviewed | None:
        assert (audience, timeout > 0) == ("gpuplane", True)
        hold = self.hold
        self.asked.append(token)
        if hold is not None:
            assert hold.wait(30)
        if self.away:
            raise TemporaryKubeError("away", request="POST")
        return self.answers.get(token)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_agent_of_a_node(world: World) -> None:
    """VIEW-6 known by its ServiceAccount, for the node of its pod; asked for once a minute."""
    want = Actor("agent@n1", Role.VIEWER, service=True, node="n1", scope=TokenScope.AGENT)
    assert world.tokens.known(TOKEN) is None
    assert [world.tokens.verify(TOKEN) for _ in range(3)] == [want] * 3
    assert world.tokens.known(TOKEN) == want
    assert world.asked == [TOKEN]
    world.now = FRESH_SECONDS
    assert world.tokens.known(TOKEN) is None
    assert world.tokens.verify(TOKEN) == want
    assert len(world.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nobody's, or for another audience"),
        pytest.param(Reviewed("system:serviceaccount:team:default", "n1"), id="another ServiceAccount"),
        pytest.param(Reviewed(AGENTS, ""), id="bound to no pod"),
    ],
)
def test_who_is_no_agent(world: World, answer: Reviewed | None) -> None:
    """VIEW-6 refused, remembered for a moment only, so that a mended set-up is let in soon."""
    world.answers[TOKEN] = answer
    assert world.tokens.verify(TOKEN) is None
    assert world.tokens.verify(TOKEN) is None
    assert len(world.asked) == 1
    world.answers[TOKEN] = Reviewed(AGENTS, "n1")
    world.now = REFUSED_SECONDS
    assert world.tokens.verify(TOKEN) is not None


def test_an_api_server_that_is_away(world: World) -> None:
    """Who was let in lately still is; nobody new."""
    world.tokens.verify(TOKEN)
    world.away = True
    assert world.tokens.verify(TOKEN) is not None
    with pytest.raises(ReviewFailed):
        world.tokens.verify(OTHER)
    world.now = FRESH_SECONDS
    with pytest.raises(ReviewFailed):
        world.tokens.verify(TOKEN)


def test_without_a_cluster_there_are_none() -> None:
    assert AgentTokens(lambda: None, "gpuplane", account=AGENTS).verify(TOKEN) is None


def test_memory_is_bounded(world: World) -> None:
    """Bad ones are kept apart: they push no good one out."""
    world.tokens.verify(TOKEN)
    for number in range(MOST_KNOWN + 10):
        world.tokens.verify(f"a.b.{number}")
    assert len(world.tokens._bad) == MOST_KNOWN
    assert world.tokens.known(TOKEN) is not None


@pytest.mark.parametrize(
    ("token", "never"),
    [
        pytest.param(TOKEN, False, id="an agent's"),
        pytest.param(jwt(aud="gpuplane"), False, id="one audience as text"),
        pytest.param(jwt(exp=NOW - 60), False, id="expired by a clock that differs"),
        pytest.param("a.b.c", True, id="no JSON"),
        pytest.param("..", True, id="empty parts"),
        pytest.param(TOKEN + "!", True, id="a signature that is no base64"),
        pytest.param(TOKEN.partition(".")[0] + "." + part([1]) + ".cw", True, id="claims that are a list"),
        pytest.param(".".join((part({"alg": "RS256"}), "W" * 4000, "cw")), True, id="deep claims"),
        pytest.param(jwt(head={"alg": "none"}), True, id="not signed"),
        pytest.param(jwt(sub="system:serviceaccount:team:default"), True, id="another account"),
        pytest.param(jwt(aud=["https://kubernetes.default.svc"]), True, id="another audience"),
        pytest.param(jwt(aud=[]), True, id="no audience"),
        pytest.param(jwt(iss=""), True, id="no issuer"),
        pytest.param(jwt(exp=NOW - 3600), True, id="expired"),
        pytest.param(jwt(exp=None), True, id="without an end"),
        pytest.param(jwt(more="x" * 9000), True, id="longer than any"),
    ],
)
async def test_what_cannot_be_an_agents_token_is_refused_without_asking(
    world: World, threads: Lanes, token: str, never: bool
) -> None:
    """VIEW-6 credentials that are no credentials cost the API server nothing."""
    assert world.tokens.refused(token) is never
    if never and token.count(".") == 2:
        bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
        with pytest.raises(Refused) as refused:
            await bearer.agent(scope(token), node="n1")
        assert refused.value.status == 401
        assert world.asked == []


async def test_tokens_that_are_refused_are_paced_by_address(world: World, threads: Lanes) -> None:
    """VIEW-6 an address that has tried too many tokens is refused without asking; others, and tokens that were good,
    are not.
    """
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    await bearer.agent(scope(TOKEN, "10.0.0.1"), node="n1")
    statuses = [await status_of(bearer, numbered(number), "10.0.0.1") for number in range(int(FAILURES.burst) + 5)]
    assert statuses == [401] * int(FAILURES.burst) + [429] * 5
    assert len(world.asked) == 1 + int(FAILURES.burst)
    world.answers[OTHER] = Reviewed(AGENTS, "n1")
    assert await status_of(bearer, OTHER, "10.0.0.2") == 0
    world.now = FRESH_SECONDS + 1
    assert await status_of(bearer, TOKEN, "10.0.0.1") == 0, "it was good before"
    assert await status_of(bearer, numbered(-1), "10.0.0.1") == 401, "the pace lets go on"


async def test_good_tokens_use_no_allowance_up(world: World, threads: Lanes) -> None:
    """VIEW-6 a thousand agents behind one address sign in one after the other."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    for number in range(200):
        world.answers[numbered(number)] = Reviewed(AGENTS, "n1")
        assert await status_of(bearer, numbered(number), "10.0.0.1") == 0


async def test_tokens_that_are_refused_are_paced_in_all(world: World, threads: Lanes) -> None:
    """VIEW-6 from however many addresses they come."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    most = int(ALL_FAILURES.burst)
    statuses = [
        await status_of(bearer, numbered(number), f"10.1.{number >> 8}.{number & 255}") for number in range(most + 9)
    ]
    assert statuses == [401] * most + [429] * 9
    assert len(world.asked) == most


async def test_a_slow_api_server_makes_only_unknown_tokens_wait(world: World, threads: Lanes) -> None:
    """VIEW-6 while reviews of tokens never seen are held, who is known is let in, and who was good before is asked
    about at once.
    """
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    await bearer.agent(scope(TOKEN), node="n1")
    world.now = FRESH_SECONDS + 1
    held = world.hold = threading.Event()
    flood = [asyncio.ensure_future(status_of(bearer, numbered(number), f"10.0.0.{number}")) for number in range(20)]
    try:
        while len(world.asked) < 5:  # noqa: ASYNC110 - asked in threads
            await asyncio.sleep(0.001)
        world.hold = None
        assert await status_of(bearer, TOKEN, "10.9.9.9") == 0
        assert (await bearer.agent(scope("agent"), node="n2")).node == "n2"
        assert await threads.filter.run(lambda: "filter answers") == "filter answers"
        assert not any(one.done() for one in flood)
    finally:
        held.set()
        assert set(await asyncio.gather(*flood)) == {401}


@pytest.mark.parametrize(
    ("token", "want"), [(TOKEN, True), ("a" * 64, False), ("a.b", False), ("a.b." + "c" * 9000, False)]
)
def test_which_tokens_are_asked_about(token: str, want: bool) -> None:
    assert is_jwt(token) is want


def scope(token: str, address: str = "10.0.0.9") -> Any:
    return {"headers": [(b"authorization", f"Bearer {token}".encode())], "client": (address, 40_000)}


async def status_of(bearer: Bearer, token: str, address: str) -> int:
    """0 for who is let in as the agent of n1."""
    try:
        await bearer.agent(scope(token, address), node="n1")
    except Refused as refused:
        return refused.status
    return 0


@pytest.fixture
def threads() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


KNOWN = {
    "admin": Actor("ada", Role.ADMIN, None),
    "viewer": Actor("vera", Role.VIEWER),
    "agent": Actor("agent@n2", Role.VIEWER, service=True, node="n2", scope=TokenScope.AGENT),
    **{
        scope.value: Actor("machine", Role.VIEWER, service=True, scope=scope)
        for scope in TokenScope
        if scope != TokenScope.AGENT
    },
}


@pytest.mark.parametrize(
    ("token", "node", "status"),
    [
        ("admin", "n1", 403),
        ("extender", "n1", 403),
        ("webhooks", "n1", 403),
        ("metrics", "n1", 403),
        ("inventory", "n1", 403),
        ("rest", "n1", 403),
        ("agent", "n2", 0),
        ("agent", "n1", 403),
        ("viewer", "n1", 403),
        ("nobody", "n1", 401),
        ("", "n1", 401),
        (TOKEN, "n1", 0),
        (TOKEN, "n2", 403),
        ("x.y.z", "n1", 401),
        (OTHER, "n1", 401),
    ],
)
async def test_who_may_speak_for_a_node(world: World, threads: Lanes, token: str, node: str, status: int) -> None:
    """VIEW-6 an agent for its own node alone, whichever way it signs in."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    if not status:
        found = await bearer.agent(scope(token), node=node)
        assert found.node == node
        return
    with pytest.raises(Refused) as refused:
        await bearer.agent(scope(token), node=node)
    assert refused.value.status == status
    if status == 403:
        assert refused.value.detail.startswith(f"this needs a token of scope agent of node {node};")


async def test_an_agent_opens_no_other_listener(world: World, threads: Lanes) -> None:
    """VIEW-6 the scheduler's and the webhooks' paths are not for agents, however they sign in."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    for token, status in (("agent", 403), (TOKEN, 401)):
        with pytest.raises(Refused) as refused:
            await bearer.actor(scope(token), needed=TokenScope.EXTENDER)
        assert refused.value.status == status
    assert (await bearer.actor(scope("extender"), needed=TokenScope.EXTENDER)).name == "machine"
    world.away = True
    with pytest.raises(Refused) as refused:
        await bearer.agent(scope(OTHER), node="n1")
    assert refused.value.status == 503


async def test_addresses_of_one_network_have_the_allowance_of_one(world: World, threads: Lanes) -> None:
    """VIEW-6 a subscriber with an IPv6 network locks no agent out."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    for number in range(int(ALL_FAILURES.burst)):
        await status_of(bearer, numbered(number), f"2001:db8::{number + 1:x}")
    assert len(world.asked) == int(FAILURES.burst)
    assert await status_of(bearer, TOKEN, "10.0.0.7") == 0


async def test_an_api_server_that_is_away_uses_no_allowance_up(world: World, threads: Lanes) -> None:
    """VIEW-6 agents behind one address that try while it is away are let in once it is back."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    world.away = True
    tries = [await status_of(bearer, numbered(number), "10.0.0.1") for number in range(int(FAILURES.burst) + 8)]
    assert set(tries) == {503}
    world.away = False
    assert await status_of(bearer, TOKEN, "10.0.0.1") == 0


async def test_reviews_that_find_no_thread_use_no_allowance_up(
    world: World, threads: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VIEW-6 a token that was not reviewed was not refused."""

    async def busy(*_: object) -> None:
        raise Busy("new-reviews", 1)

    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    with monkeypatch.context() as patched:
        patched.setattr(Lane, "run", busy)
        tries = [await status_of(bearer, numbered(number), "10.0.0.1") for number in range(int(FAILURES.burst) + 8)]
    assert set(tries) == {503}
    assert await status_of(bearer, TOKEN, "10.0.0.1") == 0


async def test_a_review_that_is_cancelled_gives_its_allowance_back_once(world: World, threads: Lanes) -> None:
    """VIEW-6 neither none nor more than it took."""
    bearer = Bearer(KNOWN.get, KNOWN.get, threads, agents=world.tokens)
    refused = 2
    for number in range(refused):
        assert await status_of(bearer, numbered(number), "10.0.0.1") == 401
    held = world.hold = threading.Event()
    review = asyncio.create_task(status_of(bearer, OTHER, "10.0.0.1"))
    try:
        while len(world.asked) <= refused:  # noqa: ASYNC110 - asked in threads
            await asyncio.sleep(0.001)
        review.cancel()
        with pytest.raises(asyncio.CancelledError):
            await review
    finally:
        held.set()
    left = int(FAILURES.burst) - refused
    assert [world.tokens.failures.take("10.0.0.1") for _ in range(left + 1)] == [True] * left + [False]


@pytest.mark.parametrize(
    ("ends_after", "want_known_seconds"),
    [
        pytest.param(5.0, 5.0, id="it ends before the answer is old"),
        pytest.param(3600.0, FRESH_SECONDS, id="it ends later"),
        pytest.param(-60.0, 0.0, id="by this clock it has ended"),
    ],
)
def test_a_token_is_known_no_longer_than_it_lasts(world: World, ends_after: float, want_known_seconds: float) -> None:
    """VIEW-6 from its end on the API server is asked again."""
    token = jwt(exp=NOW + ends_after)
    world.answers[token] = Reviewed(AGENTS, "n1")
    assert world.tokens.verify(token) is not None
    world.now = want_known_seconds - 0.1
    assert (world.tokens.known(token) is not None) is (want_known_seconds > 0)
    world.now = want_known_seconds
    assert world.tokens.known(token) is None
    world.answers[token] = None
    assert world.tokens.verify(token) is None
