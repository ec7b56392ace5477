"""The stand-in API server applies a request late: what its client, the object and the fault say meanwhile and
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.apiserver import ApiServer, Fault
from tests.fakes.late import Late

BINDING = r"/binding$"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_pod("train", namespace="team")
        yield running


def bind(server: ApiServer, *, seconds: float = 10.0) -> int:
    """The status of a Binding; 0 where no answer came."""
    path = f"{server.url}/api/v1/namespaces/team/pods/train/binding"
    try:
        return httpx.post(path, json={"target": {"name": "n1"}}, timeout=seconds).status_code
    except httpx.TransportError:
        return 0


def node(server: ApiServer) -> str:
    return str(server.pods["team", "train"]["spec"].get("nodeName", ""))


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        pytest.param(Fault("POST", BINDING), 0.2, id="the client gives up"),
        pytest.param(Fault("POST", BINDING, drop="before"), 10.0, id="the client is hung up on"),
    ],
)
def test_applied_after_the_client_has_gone(server: ApiServer, fault: Fault, seconds: float) -> None:
    fault.late = late = Late()
    server.faults.append(fault)
    assert bind(server, seconds=seconds) == 0
    late.wait_held()
    assert (late.held, node(server)) == (1, "")
    late.release()
    assert (late.held, late.outcomes, node(server)) == (0, [201], "n1")


def test_judged_by_what_is_true_when_it_arrives(server: ApiServer) -> None:
    """Two that wait are applied one after the other, and another that came before them wins."""
    late = Late()
    server.faults.append(Fault("POST", BINDING, late=late, drop="before", times=2))
    assert [bind(server), bind(server), bind(server)] == [0, 0, 201]
    late.release()
    assert late.outcomes == [409, 409]


def test_after_so_many_seconds(server: ApiServer) -> None:
    """A client that waits long enough gets its answer."""
    late = Late(seconds=0.1)
    server.faults.append(Fault("POST", BINDING, late=late))
    assert bind(server) == 201
    assert late.outcomes == [201]


def test_a_server_that_stops_applies_nothing_more(server: ApiServer) -> None:
    late = Late()
    server.faults.append(Fault("POST", BINDING, late=late, drop="before"))
    assert bind(server) == 0
    late.wait_held()
    server.stop()
    server.start()
    assert (late.held, late.outcomes, node(server)) == (0, [], "")


def test_another_cluster_at_the_same_address(server: ApiServer) -> None:
    server.faults.append(Fault("POST", BINDING, status=500))
    url = server.url
    server.fresh()
    assert (server.url, dict(server.pods), server.faults) == (url, {}, [])
    assert server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
