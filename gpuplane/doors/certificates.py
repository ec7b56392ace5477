"""TLS of the doors, kept fresh: certificates are re-read when their files change.

Used by `gpuplane.serve`. Kept true: a half-written pair (new certificate, old key) is never put into
service: each reading is tried on a context of its own first, and the old pair serves until the new one
loads. A client CA that is added counts at once; one that is taken away counts until the restart, since
OpenSSL can only add to a context in use.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from gpuplane.doors.plan import DoorRefused, Tls

CHECK_SECONDS = 5.0

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The context of one door. `context` goes to the server once; `refresh` swaps what it presents."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        try:
            self._seen = self._stamp()
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise DoorRefused(f"TLS cannot be set up from {tls.certificate}, {tls.key}: {error}") from error

    def refresh(self) -> bool:
        """Re-read the files if they changed; whether a new pair serves now. Logs what does not load."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._load()
            self._fill(self.context)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate.not_loaded", certificate=str(self._tls.certificate), error=str(error))
            return False
        self._seen = stamp
        log.info("certificate.reloaded", certificate=str(self._tls.certificate))
        return True

    async def watch(self) -> None:
        """Refresh every CHECK_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.refresh)

    def _files(self) -> list[Path]:
        return [path for path in (self._tls.certificate, self._tls.key, self._tls.client_ca) if path is not None]

    def _stamp(self) -> Stamp:
        seen = [path.stat() for path in self._files()]
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in seen)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._tls.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        self._fill(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._tls.certificate, self._tls.key)
        if self._tls.client_ca is not None:
            context.load_verify_locations(self._tls.client_ca)
