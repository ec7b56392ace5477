"""gpuplane behind two proxies: one in front of the API server for gpuplane, one in front of gpuplane for
kube-scheduler.

Used by the tests in which requests are held, refused or lose their answers. A module of tests makes its `module_stack`
by `proxied_stack`, and has the proxies by the fixture `between`, which it imports.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.faults import Faults
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import free_ports
from tests.cluster.controlplane.stack import Stack

BINDING = r"/pods/[^/]+/binding$"
LEASE = r"/leases"


class Between:
    """The two proxies: `api` in front of the API server for gpuplane, `door` in front of gpuplane for
    kube-scheduler.
    """

    def __init__(self, api: Faults, door: Faults) -> None:
        self.api = api
        self.door = door


_BETWEEN: dict[int, Between] = {}


@contextmanager
def proxied_stack(plane: ControlPlane, vendor: str, **settings: str) -> Iterator[Stack]:
    """gpuplane on that database with these settings, behind both proxies, and its scheduler."""
    stack = Stack(plane, plane.folder)
    api = Faults(port=free_ports(1)[0], upstream=plane.url, ca=plane.authority.certificate)
    try:
        stack.install()
        through = stack.accounts(url=api.url)
        with api.serving():
            ours = stack.start_gpuplane(vendor=vendor, settings=settings, kubeconfigs=through, fronted=True)
            door = Faults(port=stack.doors.extender, upstream=ours.extender_behind)
            with door.serving():
                stack.start_scheduler()
                _BETWEEN[id(stack)] = Between(api, door)
                yield stack
                stack.close()
    finally:
        stack.close()


@pytest.fixture
def between(stack: Stack) -> Iterator[Between]:
    """The proxies, with no rule left over."""
    found = _BETWEEN[id(stack)]
    yield found
    found.api.clear()
    found.door.clear()


def watching(stack: Stack, namespace: str) -> Observer:
    """An observer of the namespace's pods."""
    return Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods")
