"""Who holds, or wants to hold, devices: a pod, or a client over REST."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """`pod_name` and `pod_uid` are empty for a REST client; `identity` goes into the leases."""

    namespace: str
    identity: str
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def label(self) -> str:
        """`namespace/pod` for people, or the identity of a REST holder."""
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.identity


def pod_holder(namespace: str, name: str, uid: str) -> Holder:
    """The holder of a pod's devices; identity `<namespace>/<pod>/<uid>` (DESIGN §3, Leases)."""
    return Holder(namespace=namespace, identity=f"{namespace}/{name}/{uid}", pod_name=name, pod_uid=uid)
