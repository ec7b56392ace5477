import socket
import tempfile
from pathlib import Path

import pytest

from gpuplane.listeners.plan import ListenAddress
from gpuplane.run import preflight
from gpuplane.run.redis import LONGEST_SOCKET_PATH


def test_port_taken_is_reported_with_a_way_out(monkeypatch):
    monkeypatch.setattr(preflight, "PORT_WAIT_SECONDS", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = ListenAddress("main", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(preflight.CannotRun, match="GPUPLANE_PORT"):
            preflight.check_free([door])
    preflight.check_free([door])


def test_port_zero_becomes_a_free_one():
    port = preflight.choose_port("127.0.0.1", 0)
    assert port > 0
    assert preflight.choose_port("127.0.0.1", 8000) == 8000


def test_redis_socket_lies_in_the_data_folder():
    assert preflight.redis_url(Path("/srv/gpuplane")) == "unix:///srv/gpuplane/redis.sock"


def test_redis_socket_of_a_long_folder_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    folder = tmp_path / ("deep" * 30)
    path = Path(preflight.redis_url(folder).removeprefix("unix://"))
    try:
        assert len(str(path)) <= LONGEST_SOCKET_PATH
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert preflight.redis_url(folder) == f"unix://{path}", "the same folder, the same socket"
    finally:
        path.parent.rmdir()


def test_redis_folder_open_to_others_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / ("deep" * 30)
    Path(preflight.redis_url(folder).removeprefix("unix://")).parent.chmod(0o777)

    with pytest.raises(preflight.CannotRun, match="belongs to somebody else"):
        preflight.redis_url(folder)
