"""What is requested: dialects (pod → request), GpuClaims, gangs, queues, admission.

In come pods, manifests and admission reviews; out go `DeviceRequest` values, the rows of claims, gangs and queues, and
verdicts. Called by `allocations`, `inference`, `autoscaling` and `gpuplane`. Invariants:
- Every caller parses pods and manifests by the same functions.
- With a cluster the API server owns the spec of a manifest, without one the database does (`store`).
- A manifest that breaks a rule is refused, or mirrored as Invalid with the reason.
"""
