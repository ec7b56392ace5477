"""A call that hangs: it is given up after a while, and keeps no process from ending."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.configuration import Configuration

from kube import credential_calls
from kube.configured import Server
from kube.credential_calls import ABANDONED_MOST, ABANDONED_SECONDS, CredentialCall, NoAnswer
from kube.errors import Unreachable
from kube.http1 import Request

DEADLINE = 0.3
LATE = DEADLINE + ABANDONED_SECONDS


class Plugin:
    """Hangs until it is let go, as often as a test says; the answer is the number of the call."""

    def __init__(self, *, hangs: int) -> None:
        self.now = 0.0
        self.calls = 0
        self.gates = [threading.Event() for _ in range(hangs)]
        self.call = CredentialCall(self._work, seconds=DEADLINE, clock=lambda: self.now)

    def _work(self) -> int:
        self.calls += 1
        number = self.calls
        if number <= len(self.gates):
            self.gates[number - 1].wait(60)
        return number

    def ask(self, *, later: float = 0.0) -> int | None:
        """The answer so much later, None for a refusal."""
        self.now += later
        try:
            return self.call.result()
        except NoAnswer:
            return None


@pytest.fixture
def plugins() -> Iterator[list[Plugin]]:
    """Plugins whose calls are let go in the end."""
    made: list[Plugin] = []
    yield made
    for plugin in made:
        for gate in plugin.gates:
            gate.set()


def test_a_call_that_hangs_is_given_up(plugins: list[Plugin]) -> None:
    """Until then everybody is refused and no other call is made; then a new one answers, beside the one that hangs."""
    plugins.append(plugin := Plugin(hangs=1))
    assert plugin.ask() is None
    assert plugin.ask(later=LATE - 1) is None
    assert plugin.calls == 1
    assert plugin.ask(later=1) == 2
    plugin.gates[0].set()
    assert plugin.ask() == 3, "what was given up answers nobody"


def test_few_calls_that_hang_are_given_up_at_a_time(plugins: list[Plugin]) -> None:
    """However long they hang, there are no more threads; when one of them ends, another call is made."""
    plugins.append(plugin := Plugin(hangs=ABANDONED_MOST + 1))
    for _ in range(3 * ABANDONED_MOST):
        assert plugin.ask(later=LATE) is None
    assert plugin.calls == ABANDONED_MOST + 1
    abandoned = plugin.call._abandoned[0]
    plugin.gates[0].set()
    abandoned.result(timeout=20)
    assert plugin.ask(later=LATE) == ABANDONED_MOST + 2


def test_a_token_that_comes_too_late_replaces_no_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin that was given up answers after the one that was asked in its place."""
    monkeypatch.setattr(credential_calls, "SECONDS", DEADLINE)
    monkeypatch.setattr(credential_calls, "ABANDONED_SECONDS", 0.0)
    tokens = iter(["first", "second"])
    gate, written = threading.Event(), threading.Event()

    def refresh(credentials: SimpleNamespace) -> None:
        token = next(tokens)
        if token == "first":
            gate.wait(60)
        credentials.api_key["BearerToken"] = f"bearer {token}"
        if token == "first":
            written.set()

    configuration: Any = Configuration()
    configuration.host, configuration.refresh_api_key_hook = "http://127.0.0.1", refresh
    server = Server(configuration, connections=1)
    with pytest.raises(Unreachable):
        server.renew()
    server.renew()
    gate.set()
    assert written.wait(20)
    assert b"Authorization: bearer second\r\n" in server.encode(Request(method="GET", target="/version", seconds=5.0))


def test_what_a_call_raises_is_raised() -> None:
    """To who asks; the next one makes another call."""
    answers = iter([OSError("no such plugin")])

    def work() -> str:
        for error in answers:
            raise error
        return "token"

    call = CredentialCall(work)
    with pytest.raises(OSError, match="no such plugin"):
        call.result()
    assert call.result() == "token"


ENDS = """
import threading
from kube.credential_calls import CredentialCall, NoAnswer
try:
    CredentialCall(threading.Event().wait, seconds=0.05).result()
except NoAnswer:
    print("refused")
"""


def test_a_process_whose_plugin_hangs_ends() -> None:
    """It is not killed at the end of its pod's grace."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "refused\n"
