"""POSTs of an event loop: the writes of a bind, by the hundred at once, each once.

Used by the binds that come together (`allocations.extender.together`), through `leases.create_evented` and `pods.bind_evented`. Kept
true: errors are those of `kube.errors`; nothing is repeated here and refused credentials are not renewed: whoever is refused goes on
with the `Cluster` itself.
"""

from __future__ import annotations

import msgspec
from urllib3.exceptions import HTTPError

from kube.client import JSON, Cluster
from kube.connection import Connection
from kube.errors import from_answer, from_transport
from kube.evented import Evented


class Posts:
    """Those of the running event loop to one cluster. Used in that loop's thread alone."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises `NotConfigured` for a cluster that is reached through a proxy: see `Cluster.connection.direct`."""
        self._cluster = cluster
        self._connection = cluster.connection
        self._evented = self._connection.evented()

    def close(self) -> None:
        """Close idle connections; those in use close when they come back."""
        self._evented.close()

    async def post(self, path: str, body: object, *, seconds: float, before: float) -> bytes:
        """The body of the answer. `seconds`: for connecting, and for the answer; `before`: not sent later, by the loop's clock.

        Raises the tree of `kube.errors`.
        """
        connection, evented = self._current()
        request = f"POST {path}"
        try:
            answer = await connection.send_evented(
                evented, "POST", path, body=msgspec.json.encode(body), content_type=JSON, seconds=seconds, before=before
            )
        except HTTPError as error:
            raise from_transport(error, request=request, write=True) from error
        if answer.status >= 300:
            raise from_answer(code=answer.status, body=answer.data, headers=answer.headers, request=request, write=True)
        return answer.data

    def _current(self) -> tuple[Connection, Evented]:
        """With the credentials of now: those of a Cluster that read them anew are other connections."""
        if self._cluster.connection is not self._connection:
            self._evented.close()
            self._connection = self._cluster.connection
            self._evented = self._connection.evented()
        return self._connection, self._evented
