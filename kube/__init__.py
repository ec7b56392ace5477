"""Access to the Kubernetes API: client, CRDs, watches, typed errors; and formats that Kubernetes defines (quantities,
names, annotation keys, the fields of objects that we read), in modules that import no network code.

In come requests as values; out go decoded objects and the errors of `kube.errors`. Called by every room above, and by
`simulator` (formats alone). Invariants:
- No Django, and no other package of the project.
- Every request has a deadline; only temporary errors are retried, and writes only if that is safe.
- A write whose answer is lost raises `OutcomeUnknown`. A name cannot leave its segment of a path.
"""
