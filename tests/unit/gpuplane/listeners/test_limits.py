import ipaddress

import pytest

from gpuplane.listeners.limits import SPARE_FILES, listener_limits


@pytest.mark.parametrize(
    ("proxies", "address", "want"),
    [
        pytest.param(["127.0.0.1", "::1"], "127.0.0.1", True, id="loopback"),
        pytest.param([], "127.0.0.6", True, id="a sidecar's loopback address"),
        pytest.param([], "::1", True, id="loopback of IPv6"),
        pytest.param(["10.0.0.0/8"], "10.1.2.3", True, id="a proxy's network"),
        pytest.param(["10.0.0.0/8"], "11.1.2.3", False, id="outside of it"),
        pytest.param(["192.0.2.7"], "192.0.2.7", True, id="a proxy's address"),
        pytest.param(["192.0.2.7"], "192.0.2.8", False, id="its neighbour"),
        pytest.param([], "198.51.100.1", False, id="no proxies"),
        pytest.param(["fc00::/7"], "fd00::1", True, id="a network of IPv6"),
    ],
)
def test_who_has_no_limit_of_their_own(proxies, address, want):
    found = listener_limits(connections=100, per_address=10, proxies=proxies, open_files=10_000)

    assert found.trusts(ipaddress.ip_address(address)) is want


@pytest.mark.parametrize(
    ("asked", "open_files", "want"),
    [
        pytest.param(1000, 20_000, 1000, id="as asked"),
        pytest.param(8192, 1024, 1024 - SPARE_FILES, id="fewer than files may be open"),
        pytest.param(8192, 256, 1, id="hardly any files"),
    ],
)
def test_connections_leave_files_to_others(asked, open_files, want):
    assert listener_limits(connections=asked, per_address=10, proxies=[], open_files=open_files).connections == want


def test_all_listeners_together_leave_files_to_others():
    """Three full ones, too, leave the database its own."""
    one = listener_limits(connections=8192, per_address=10, proxies=[], open_files=1024, listeners=3)
    assert 3 * one.connections <= 1024 - SPARE_FILES
