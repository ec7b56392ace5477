"""Kubernetes events on waiting pods, of one reason and one run.

Called by what tells pods why they wait, and what is made for them. Invariant: a namespace that takes none for now
waits for the next run, and delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Literal

import structlog

from kube import pods
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError, PermanentKubeError

log = structlog.get_logger(__name__)


class PodEvents:
    """`written`: how many this run has written. `failing`: namespaces that wait for the next run."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        reason: str,
        now: datetime,
        most: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: events of the run. `seconds`: after so long it is to begin no further one."""
        self.written = 0
        self.failing: set[str] = set()
        self._cluster = cluster
        self._reason = reason
        self._now = now
        self._most = most
        self._clock, self._ends = clock, clock() + seconds

    @property
    def over(self) -> bool:
        """Whether the others are left to the next run."""
        return self.written >= self._most or self._clock() > self._ends

    def write(
        self, message: str, *, namespace: str, name: str, uid: str, kind: Literal["Normal", "Warning"] = "Warning"
    ) -> bool:
        """Write it, unless the namespace is failing. False: to be tried in the next run; True also where the event
        exists or is refused for good.
        """
        if namespace in self.failing:
            return False
        about = {"pod": f"{namespace}/{name}", "reason": self._reason}
        try:
            pods.event_record(
                self._cluster,
                namespace=namespace,
                name=name,
                uid=uid,
                reason=self._reason,
                message=message,
                now=self._now,
                kind=kind,
            )
        except AlreadyExists:
            log.debug("pod_event.written_already", **about)
        except PermanentKubeError as error:  # the namespace is being deleted, say
            log.info("pod_event.refused", error=str(error), **about)
        except KubeError as error:
            log.warning("pod_event.interrupted", error=str(error), **about)
            self.failing.add(namespace)
            return False
        else:
            self.written += 1
        return True
