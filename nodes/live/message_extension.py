"""Name of the extension by which a listener offers messages as they arrive; without Django, which starts later.

Offered by `gpuplane.listeners.bounded_sockets`, used by `ingest`.
"""

from __future__ import annotations

from typing import Final

AT_ONCE: Final = "gpuplane.at_once"
"""Extension of a WebSocket's scope: takes a function to which binary messages are offered as they arrive. It returns
whether it took the message; others are received as usual. None is offered while an earlier one waits to be received.
"""
