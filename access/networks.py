"""The network of an address, by which clients are counted and limited.

Called by `access.attempts`, and by the listeners for connections and rates. Invariants: one subscriber has one network,
however many addresses of it they use.
"""

from __future__ import annotations

import ipaddress
from typing import Final

UNKNOWN: Final = "unknown"
"""Of every text that is no address."""
IPV6_PREFIX_BITS: Final = 64
"""A subscriber has at least a /64, and could use a new address for each attempt."""


def network_of(address: str) -> str:
    """An IPv4 address itself, the /64 network of an IPv6 address, UNKNOWN for any other text."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return UNKNOWN
    if found.version == 6:
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, IPV6_PREFIX_BITS), strict=False))
        found = found.ipv4_mapped
    return str(found)
