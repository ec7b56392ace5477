import socket
import tempfile
from pathlib import Path

import pytest

from gpuplane.doors.plan import Door
from gpuplane.run import surroundings
from gpuplane.run.redis import LONGEST_SOCKET_PATH


def test_port_taken_is_told_with_a_way_out(monkeypatch):
    monkeypatch.setattr(surroundings, "PORT_WAIT_SECONDS", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = Door("main", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(surroundings.CannotRun, match="GPUPLANE_PORT"):
            surroundings.check_free([door])
    surroundings.check_free([door])


def test_port_zero_becomes_a_free_one():
    port = surroundings.choose_port("127.0.0.1", 0)
    assert port > 0
    assert surroundings.choose_port("127.0.0.1", 8000) == 8000


def test_redis_socket_lies_in_the_data_folder():
    assert surroundings.redis_url(Path("/srv/gpuplane")) == "unix:///srv/gpuplane/redis.sock"


def test_redis_socket_of_a_long_folder_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    folder = tmp_path / ("deep" * 30)
    path = Path(surroundings.redis_url(folder).removeprefix("unix://"))
    try:
        assert len(str(path)) <= LONGEST_SOCKET_PATH
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert surroundings.redis_url(folder) == f"unix://{path}", "the same folder, the same socket"
    finally:
        path.parent.rmdir()


def test_redis_folder_open_to_others_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / ("deep" * 30)
    Path(surroundings.redis_url(folder).removeprefix("unix://")).parent.chmod(0o777)

    with pytest.raises(surroundings.CannotRun, match="belongs to somebody else"):
        surroundings.redis_url(folder)
