"""Admission as pure verdicts: a decoded review goes in, an answer comes out. No Django, no network, no clock.

The views of the webhooks decode the body (`kube.admission`), look up what a verdict needs (the pod of a
Binding, whether the namespace is taken over), call one verdict and encode it.
"""

from claims.admission.mutate import mutate_pod
from claims.admission.trust import Trust
from claims.admission.validate_binding import validate_binding
from claims.admission.validate_claim import validate_claim
from claims.admission.validate_pod import validate_pod

__all__ = ["Trust", "mutate_pod", "validate_binding", "validate_claim", "validate_pod"]
