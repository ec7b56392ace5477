"""Check that a pod's name, namespace and uid are ones that Kubernetes could have given it.

Called before anything is read for a pod. Invariants: what reaches the database, a lease or the API server's paths
is a DNS name or a UID, so no text is too long for its column or holds NUL.
"""

from __future__ import annotations

from kube.names import InvalidName, check_namespace, check_subdomain, check_uid
from kube.objects import Pod

NO_UID = "the pod has no uid"


def identity_problem(*, namespace: str, name: str, uid: str) -> str:
    """The rule that the identity breaks, as a sentence without the value; empty when it is sound."""
    if not uid:
        return NO_UID
    try:
        check_namespace(namespace, what="the pod's namespace")
        check_subdomain(name, what="the pod's name")
        check_uid(uid, what="the pod's uid")
    except InvalidName as error:
        return str(error)
    return ""


def pod_problem(pod: Pod) -> str:
    """`identity_problem` of a pod."""
    meta = pod.metadata
    return identity_problem(namespace=meta.namespace, name=meta.name, uid=meta.uid)


def is_uid(value: str) -> bool:
    """Whether any pod could have this uid."""
    try:
        check_uid(value)
    except InvalidName:
        return False
    return True
