"""One control plane for the session; one gpuplane for a module and database; every test leaves the cluster as promised,
and empty.

- `plane`: the control plane, with the chart's objects applied.
- `stack`: gpuplane and its scheduler over it, on SQLite; on PostgreSQL too where a module, or a test, is parametrized
  with `module_stack`: every module whose outcome the database has a part in. `stack.gpuplane` may be killed, paused and
  started again, and is replaced when a test leaves it unfit.
- `namespace`: a fresh namespace, whose name is the test's.

After each test `invariants.settled` compares ledger, Leases, annotations and devices; a test that wants it earlier
calls it itself. Nor may any process have been refused for want of rights, but where the API server was started anew:
each runs as the ServiceAccount that the chart gives it. Logs of a failed test are kept under `cluster-logs/` of the
repository (or `CLUSTER_LOGS`).
"""

import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import ROOT
from tests.cluster.controlplane.stack import Stack, keep_logs
from tests.cluster.invariants import settled

_failed = pytest.StashKey[bool]()
WANTING = re.compile(r"system:serviceaccount:gpuplane-system:[a-z-]+\\*\" cannot [a-z]+ resource \\*\"[a-z/]+")
LOGS = Path(os.environ.get("CLUSTER_LOGS") or ROOT / "cluster-logs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, for whoever keeps the logs."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """The control plane of the session."""
    # not under pytest's own folder: the path of a Unix socket holds 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="gpuplane-cluster-"))
    made = ControlPlane(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["sqlite"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane on one database, and its scheduler, for a module."""
    made = Stack(plane, plane.folder)
    try:
        made.install()
        made.start_gpuplane(vendor=request.param)
        made.start_scheduler()
        yield made
    finally:
        made.close()


@pytest.fixture
def stack(module_stack: Stack, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The module's stack: empty before, compared and emptied after."""
    yield module_stack
    try:
        if not request.node.stash.get(_failed, False):
            settled(module_stack)
            assert rights_wanting(module_stack) == set(), "the chart's ServiceAccounts may do too little"
    except AssertionError:
        request.node.stash[_failed] = True
        raise
    finally:
        if request.node.stash.get(_failed, False):
            keep_logs(module_stack.plane, module_stack, LOGS / _word(request.node.name))
        module_stack.clear()
        try:
            settled(module_stack)
        except AssertionError:
            module_stack.renew()  # the tests that follow are to fail for reasons of their own
            raise


@pytest.fixture
def namespace(stack: Stack, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    name = _word(request.node.name)
    stack.plane.namespace(name)
    return name


def rights_wanting(stack: Stack) -> set[str]:
    """What the API server refused gpuplane's processes by RBAC, as their logs have it.

    An API server that has just started knows no rules yet and answers 403: afterwards the logs tell nothing.
    """
    if stack.plane.apiserver.pid != stack.first_apiserver:
        return set()
    logs = [one.log for one in stack.gpuplane.programs if one.log.exists()]
    return {found for log in logs for found in WANTING.findall(log.read_text(errors="replace"))}


def _word(name: str) -> str:
    """A test's name as a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("test_")).strip("-")[:50].strip("-")
