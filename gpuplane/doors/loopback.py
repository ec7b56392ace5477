"""Who may ask at the door that is plain HTTP on loopback: programs of this machine, never a page in its browser.

Called by `cluster` for that door alone. It knows nobody by a credential: being on this machine is one, and a browser on
this machine is, too, with whatever page it shows. Kept true: a request that a page could have brought about is refused
before its body is read. Pages send `Origin` with every POST to another origin; a name that was made to resolve to
loopback (DNS rebinding) stands in `Host`; and without asking first, which is not answered here, a page cannot send
`application/json`.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from gpuplane.doors import Scope
from gpuplane.doors.bearer import Refused

_JSON = b"application/json"


def check_local(scope: Scope) -> None:
    """Raises Refused: 403 for an `Origin`, and for a `Host` that is not loopback; 415 for anything but JSON."""
    host = content_type = b""
    for name, value in scope["headers"]:
        if name == b"host":
            host = value
        elif name == b"content-type":
            content_type = value
        elif name == b"origin":
            raise Refused(403, "this door is for programs of this machine, not for pages in a browser")
    if not _is_loopback_host(host):
        raise Refused(403, "the header Host must name this machine's loopback address")
    if content_type != _JSON and content_type.partition(b";")[0].strip().lower() != _JSON:
        raise Refused(415, "only application/json is understood here")


@lru_cache(maxsize=64)
def _is_loopback_host(stated: bytes) -> bool:
    """Whether a Host header names loopback: `localhost`, an address of 127.0.0.0/8 or `[::1]`, with a port or without.

    The port may be another one: it may have been forwarded, and no name that resolves to loopback changes it.
    """
    text = stated.decode("latin-1").lower()
    name, _, port = text.rpartition(":") if text.rpartition("]")[2].startswith(":") or "]" not in text else ("", "", "")
    if not name:
        name, port = text, ""
    if port and not (port.isascii() and port.isdecimal()):
        return False
    if name == "localhost":
        return True
    bracketed = name.startswith("[") and name.endswith("]")
    try:
        address = ipaddress.ip_address(name[1:-1] if bracketed else name)
    except ValueError:
        return False
    return address.is_loopback and bracketed == (address.version == 6)
