"""What the ledger says, published: custom resources, events on pods, metrics.

In come the ledger's rows and the samples of nodes; out go the status of GpuClaims, GpuNodeStatus objects, events on
waiting pods, and expositions for Prometheus. Called by Celery tasks and by REST. Invariants:
- What was edited at the API server is overwritten; what is equal is not written again.
- No allocation changes its state here.
- What could not be written for an API server that is away is written by a later run.
"""
