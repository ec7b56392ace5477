"""kube-scheduler's extender: filter decides and holds, prioritize scores, bind binds, preempt checks.

In come the scheduler's JSON bodies (`wire`), out go its answers. Called by `gpuplane.listeners` alone. Invariants:
- A refusal is an answer (`FailedNodes`), never an error of HTTP: an error would hide the pod from node autoscalers.
- The same question twice gets the same answer; reasons name no node, so the pod's events count equal ones.
- Filter answers one node and holds its devices, so the next pod sees them taken (mode `advisory` excepted).
- Devices are held, bound and given back by way of `scheduling` alone.
"""
