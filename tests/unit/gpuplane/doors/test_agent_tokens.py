"""Agents that sign in by a ServiceAccount's token: who is let in, for which node, and how often the API server is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.doors import agent_tokens
from gpuplane.doors.agent_tokens import (
    FRESH_SECONDS,
    MOST_KNOWN,
    REFUSED_SECONDS,
    AgentTokens,
    ReviewAway,
    looks_signed,
)
from gpuplane.doors.bearer import Bearer, Refused
from kube.client import Cluster
from kube.errors import TemporaryKubeError
from kube.token_reviews import Reviewed

AGENTS = "system:serviceaccount:gpuplane-system:gpuplane-agent"
TOKEN = "head.body.signature"


class World:
    """The API server's answers by token, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, Reviewed | None] = {TOKEN: Reviewed(AGENTS, "n1")}
        self.away = False
        monkeypatch.setattr(agent_tokens, "review", self._review)
        self.tokens = AgentTokens(lambda: cast("Cluster", self), AGENTS, "gpuplane", clock=lambda: self.now)

    def _review(self, _cluster: object, *, token: str, audience: str, timeout: float) -> Reviewed | None:
        assert (audience, timeout > 0) == ("gpuplane", True)
        self.asked.append(token)
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
    with pytest.raises(ReviewAway):
        world.tokens.verify("another.one.here")
    world.now = FRESH_SECONDS
    with pytest.raises(ReviewAway):
        world.tokens.verify(TOKEN)


def test_without_a_cluster_there_are_none() -> None:
    assert AgentTokens(lambda: None, AGENTS, "gpuplane").verify(TOKEN) is None


def test_memory_is_bounded(world: World) -> None:
    for number in range(MOST_KNOWN + 10):
        world.tokens.verify(f"a.b.{number}")
    assert len(world.tokens._known) == MOST_KNOWN


@pytest.mark.parametrize(
    ("token", "want"), [(TOKEN, True), ("a" * 64, False), ("a.b", False), ("a.b." + "c" * 9000, False)]
)
def test_which_tokens_are_asked_about(token: str, want: bool) -> None:
    assert looks_signed(token) is want


def scope(token: str) -> Any:
    return {"headers": [(b"authorization", f"Bearer {token}".encode())]}


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
    ],
)
async def test_who_may_speak_for_a_node(world: World, token: str, node: str, status: int) -> None:
    """VIEW-6 an agent for its own node alone, whichever way it signs in."""
    with ThreadPoolExecutor(1) as executor:
        bearer = Bearer(KNOWN.get, KNOWN.get, executor, agents=world.tokens)
        if not status:
            found = await bearer.agent(scope(token), node=node)
            assert found.node == node
            return
        with pytest.raises(Refused) as refused:
            await bearer.agent(scope(token), node=node)
        assert refused.value.status == status
        if status == 403:
            assert refused.value.detail.startswith(f"this needs a token of scope agent of node {node};")


async def test_an_agent_opens_no_other_door(world: World) -> None:
    """VIEW-6 the scheduler's and the webhooks' paths are not for agents, however they sign in."""
    with ThreadPoolExecutor(1) as executor:
        bearer = Bearer(KNOWN.get, KNOWN.get, executor, agents=world.tokens)
        for token, status in (("agent", 403), (TOKEN, 401)):
            with pytest.raises(Refused) as refused:
                await bearer.actor(scope(token), needed=TokenScope.EXTENDER)
            assert refused.value.status == status
        assert (await bearer.actor(scope("extender"), needed=TokenScope.EXTENDER)).name == "machine"
        world.away = True
        with pytest.raises(Refused) as refused:
            await bearer.agent(scope("new.token.here"), node="n1")
        assert refused.value.status == 503
