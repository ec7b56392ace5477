"""The address that sign-ins are counted by.

Called by `access.backends` and `access.admin_site`. The address of a request is that of the connection, or the one that a
trusted proxy names (`gpuplane.doors.proxies`); a header by anybody else changes nothing.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from django.http import HttpRequest

UNKNOWN: Final = "unknown"
"""Counted for requests whose address cannot be read, all together."""
IPV6_PREFIX_BITS: Final = 64
"""One subscriber has at least a /64, and would be a new address with each attempt otherwise."""


def address_counted(request: HttpRequest | None) -> str:
    """The client as an IPv4 address or an IPv6 /64 network; UNKNOWN without a readable address."""
    return network_of("" if request is None else str(request.META.get("REMOTE_ADDR", "")))


def network_of(address: str) -> str:
    """`192.0.2.1` for itself and for `::ffff:192.0.2.1`, `2001:db8:1:2::/64` for every address in it, else UNKNOWN."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return UNKNOWN
    if found.version == 6:
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, IPV6_PREFIX_BITS), strict=False))
        found = found.ipv4_mapped
    return str(found)
