"""Agents as the chart's DaemonSet runs them: signed in by the token of their pod, speaking for the node of that pod and
no other.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.agents import account, agent, agents_pod, token_of
from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.chart import NAMESPACE
from tests.cluster.controlplane.objects import node, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.waiting import bound, minors, pods_of

__all__ = ["account"]

pytestmark = pytest.mark.usefixtures("account")

FORGOTTEN_SECONDS = 90.0
"""An answer about a token counts for a minute."""


def says(log: Path, words: str) -> Callable[[], bool]:
    """Whether the log has these words by now."""
    return lambda: words in log.read_text()


def test_an_agent_signs_in_by_its_pod(stack: Stack, namespace: str, tmp_path: Path) -> None:
    """NODE-1 VIEW-6 its node's GPUs are known, and given to a pod; the same token speaks for no other node."""
    for name in ("with-agent", "without"):
        stack.api.create("/api/v1/nodes", node(name))
    token = token_of(stack.api, "agent-1", agents_pod(stack.api, "agent-1", "with-agent"))
    with agent(stack, "with-agent", token, tmp_path):
        stack.add_pods([pod("works", namespace, resources={"nvidia.com/gpu": 8})])
        with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
            seen.until(bound("works"), seconds=60, what="a pod with the GPUs of which the agent told")
            assert minors(pods_of(seen)["works"]) == list(range(8))
        with agent(stack, "without", token, tmp_path) as log:
            eventually(says(log, "status=403"), seconds=20, what="refused for another node")
        assert stack.gpuplane.rest.get("/api/v1/nodes/without/").status_code == 404
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/works", grace_seconds=0)


def test_tokens_that_let_nobody_in(stack: Stack, namespace: str, tmp_path: Path) -> None:
    """VIEW-6 for another audience, of another ServiceAccount, or of a pod that is gone."""
    del namespace
    stack.api.create("/api/v1/nodes", node("guarded"))
    uid = agents_pod(stack.api, "agent-2", "guarded")
    good = token_of(stack.api, "agent-2", uid)
    wrong = {
        "audience": token_of(stack.api, "agent-2", uid, audience="somebody-else"),
        "account": stack.plane.service_account_token(NAMESPACE, "gpuplane"),
    }
    for kind, token in wrong.items():
        folder = tmp_path / kind
        folder.mkdir()
        with agent(stack, "guarded", token, folder) as log:
            eventually(says(log, "status=401"), seconds=20, what=f"wrong {kind} refused")
    with agent(stack, "guarded", good, tmp_path):
        eventually(
            lambda: stack.gpuplane.rest.get("/api/v1/nodes/guarded/").status_code == 200,
            seconds=30,
            what="the right one let in",
        )
    stack.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/agent-2", grace_seconds=0)
    gone = tmp_path / "gone"
    gone.mkdir()

    def refused() -> bool:
        with agent(stack, "guarded", good, gone) as log:
            eventually(says(log, "session"), seconds=20, what="an answer")
            return "status=401" in log.read_text()

    eventually(refused, seconds=FORGOTTEN_SECONDS, what="the token of a pod that is gone refused")
