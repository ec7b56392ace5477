from pathlib import Path

import pytest

from gpuplane.errors import BadSetting
from gpuplane.settings.databases import SILENT_SERVER, describe

URL = "postgres://somebody:secret@database:5433/gpuplane"


@pytest.mark.parametrize(
    ("query", "want"),
    [
        pytest.param("", SILENT_SERVER, id="none"),
        pytest.param(
            "?sslmode=verify-full&sslrootcert=/ca.crt", {"sslmode": "verify-full", "sslrootcert": "/ca.crt"}, id="TLS"
        ),
        pytest.param("?connect_timeout=2", {"connect_timeout": 2}, id="one of our own"),
    ],
)
def test_parameters_of_the_url_are_libpqs(query, want):
    """A certificate that is to be verified is verified, and a server that falls silent fails a statement."""
    entry = describe(url=f"{URL}{query}", data_dir=Path("/data"), pool_size=7)

    assert entry["OPTIONS"] == {
        **SILENT_SERVER,
        **want,
        "pool": {"min_size": 2, "max_size": 7, "timeout": 10},
        "prepare_threshold": 3,
    }
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("database", 5433, "gpuplane")


@pytest.mark.parametrize("name", ["sslmod", "schema", "pool", "isolation_level"])
def test_a_parameter_that_libpq_does_not_have(name):
    """Its connections would fail, each after ten seconds and without the reason; or it would be Django's."""
    with pytest.raises(BadSetting, match=f"^GPUPLANE_DATABASE_URL: PostgreSQL's client has no parameter {name}$"):
        describe(url=f"{URL}?{name}=4", data_dir=Path("/data"), pool_size=7)
