import pytest
from django.db import OperationalError, connection

from allocations import fleet
from gpuplane import credentials, operations
from gpuplane.listeners.cluster import ROUTES
from gpuplane.start import definitions

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def ready(settings, tmp_path, monkeypatch):
    """A process for which every check holds."""
    settings.GPUPLANE_DATA_DIR = tmp_path
    settings.GPUPLANE_SIMULATE = False
    settings.GPUPLANE_KUBECONFIG = ""
    credentials.write(credentials.Credentials())
    monkeypatch.setattr(fleet, "loaded", lambda: True)
    monkeypatch.setattr(definitions, "STATE", definitions.State())


def test_ready_under_any_host(client):
    answer = client.get("/readyz", headers={"host": "10.1.2.3"})

    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


def no_credentials(settings, monkeypatch):
    credentials.credentials_path().unlink()


def no_picture(settings, monkeypatch):
    monkeypatch.setattr(fleet, "loaded", lambda: False)


def no_nodes(settings, monkeypatch):
    settings.GPUPLANE_SIMULATE = True
    settings.GPUPLANE_SIMULATE_NODES = 1


def no_definitions(settings, monkeypatch):
    settings.GPUPLANE_KUBECONFIG = "/kubeconfig"


def no_database(settings, monkeypatch):
    def away():
        raise OperationalError("away")

    monkeypatch.setitem(operations.CHECKS, "migrated", away)


def no_folder(settings, monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory", str(settings.GPUPLANE_DATA_DIR))

    monkeypatch.setitem(operations.CHECKS, "space", gone)


@pytest.mark.parametrize(
    ("spoil", "want"),
    [
        pytest.param(no_credentials, "credentials", id="credentials not written"),
        pytest.param(no_picture, "picture", id="picture not loaded"),
        pytest.param(no_nodes, "simulation", id="simulated nodes not registered"),
        pytest.param(no_definitions, "cluster", id="definitions not applied"),
        pytest.param(no_database, "migrated", id="database away"),
        pytest.param(no_folder, "space", id="data folder away"),
    ],
)
def test_not_ready(client, settings, monkeypatch, spoil, want):
    spoil(settings, monkeypatch)
    answer = client.get("/readyz")

    assert answer.status_code == 503
    assert [name for name, check in answer.json()["checks"].items() if not check["ok"]] == [want]
    assert answer.json()["checks"][want]["detail"]


def test_a_data_folder_that_is_gone_is_said(client, settings, tmp_path):
    """VIEW-5 a probe reads the check that fails, not a page about a fault."""
    if connection.vendor != "sqlite":
        pytest.skip("the data folder has no database")
    settings.GPUPLANE_DATA_DIR = tmp_path / "gone"
    answer = client.get("/readyz")
    assert (answer.status_code, answer["Content-Type"]) == (503, "application/json")
    assert answer.json()["checks"]["space"] == {"ok": False, "detail": "No such file or directory"}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(definitions.State(applied=True), id="definitions applied"),
        pytest.param(definitions.State(problem="no route to host"), id="API server reported down"),
    ],
)
def test_ready_with_a_cluster(client, settings, monkeypatch, state):
    settings.GPUPLANE_KUBECONFIG = "/kubeconfig"
    monkeypatch.setattr(definitions, "STATE", state)

    assert client.get("/readyz").status_code == 200


def test_live_without_a_database(client, django_db_blocker):
    with django_db_blocker.block():
        assert client.get("/livez").status_code == 200


def test_metrics(client):
    assert ROUTES, "the web process has its doors, whose metrics these are"
    answer = client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain")
    assert b"gpuplane_cluster_requests" in answer.content


def test_only_reading(client):
    assert client.post("/livez").status_code == 405


def test_a_process_for_agents_alone_waits_for_no_definitions(client, settings):
    """It may not read them, and has no use for them."""
    settings.GPUPLANE_KUBECONFIG = "/kubeconfig"
    settings.GPUPLANE_AGENTS_ONLY = True

    assert client.get("/readyz").json()["checks"]["cluster"] == {"ok": True, "detail": "off"}
