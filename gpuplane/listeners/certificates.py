"""TLS contexts of the listeners: certificates are re-read when their files change.

Used by `gpuplane.serve`. Invariants: a half-written pair (new certificate, old key) is never put into service: files
are loaded into a context of their own first, and the old pair serves until the new one loads. A client CA that is added
is trusted at once; one that is removed is trusted until the restart, since OpenSSL can only add to a context in use.
"""

from __future__ import annotations

import asyncio
import ssl

import structlog

from gpuplane.listeners.plan import ListenAddressRefused, Tls

CHECK_SECONDS = 5.0

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The context of one listener. `context` goes to the server once; `refresh` swaps what it presents."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        try:
            self._seen = self._stamp()
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise ListenAddressRefused(f"TLS cannot be set up from {tls.certificate}, {tls.key}: {error}") from error

    def refresh(self) -> bool:
        """Re-read the files if they changed. Returns whether a new pair serves now; logs what does not load."""
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

    def _stamp(self) -> Stamp:
        files = (self._tls.certificate, self._tls.key, self._tls.client_ca)
        stats = [path.stat() for path in files if path is not None]
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in stats)

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
