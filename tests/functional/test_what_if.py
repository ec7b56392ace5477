"""What-if runs of the real web process: a client that leaves takes its run along, and nobody else waits for one."""

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from access.choices import Role

PATIENCE_SECONDS = 60
SMALL = {"nodes": [{"name": "n1"}], "pods": [{"metadata": {"name": "p"}}]}


def heavy():
    """Minutes of work in half a megabyte: many pods that many nodes refuse."""
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    pods = [
        {"metadata": {"name": f"p{number}"}, "spec": {"containers": [{"resources": resources}]}}
        for number in range(6_000)
    ]
    nodes = [{"name": f"n{number}"} for number in range(3_000)]
    return json.dumps({"nodes": nodes, "pods": pods}).encode()


def sent(app, token, body):
    """A connection on which a run was asked for, and whose answer nobody has read."""
    address = urlsplit(app.url)
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(
        f"POST /api/v1/simulations/ HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


def logged(app, event, times):
    """Wait until the process has logged an event so often."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while app.log.read_text().count(event) < times:
        assert time.monotonic() < ends, app.log.read_text()
        time.sleep(0.05)  # another process's log: there is nothing to wait for


def until(client, want):
    """Ask for a small run again and again until it is answered so."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        answer = client.post("/api/v1/simulations/", json=SMALL)
        if answer.status_code == want:
            return answer
        time.sleep(0.05)  # another process's state: there is nothing to wait for
    raise AssertionError(f"never answered {want}, but {answer.status_code} {answer.text}")


@pytest.mark.parametrize("times", [pytest.param(1, id="once"), pytest.param(3, id="again and again")])
def test_a_client_that_leaves_ends_its_run(live_app, times):
    """VIEW-4 no run goes on for nobody: the turn is free, and the process gone, when the connection is closed."""
    token = live_app.token(role=Role.VIEWER)
    left = live_app.log.read_text().count("what_if.left")
    with httpx.Client(base_url=live_app.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for time_ in range(times):
            began = live_app.log.read_text().count("what_if.began")
            with sent(live_app, token, heavy()):
                logged(live_app, "what_if.began", began + 1)
                refused = client.post("/api/v1/simulations/", json=SMALL)
                assert (refused.status_code, refused.headers.get("Retry-After")) == (429, "10"), refused.text
                assert httpx.get(f"{live_app.url}/livez", verify=False).status_code == 200
            logged(live_app, "what_if.left", left + time_ + 1)
            assert until(client, 200).json()["decisions"][0]["pod"] == "default/p"


def test_an_endless_run_is_ended_at_its_deadline(live_app):
    """VIEW-4 ten seconds, then a problem document in the place of an answer."""
    with live_app.client(role=Role.VIEWER) as client:
        answer = client.post(
            "/api/v1/simulations/", content=heavy(), headers={"Content-Type": "application/json"}, timeout=120
        )
        assert answer.status_code in {422, 504}, answer.text[:300]
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["rule"] in {"deadline", "memory"}
        assert until(client, 200)
