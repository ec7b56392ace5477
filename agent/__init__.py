"""The program on each GPU node, and its protocol.

In come measurements of the driver, sysfs and the kubelet's checkpoint (`sources`, `checkpoint`); out go frames over
`WS /ws/agents/<node>/` (docs/agent-protocol.md). Started by `python -m agent`; `nodes` and the listeners read
`agent.protocol`. Invariants:
- No Django, and nothing of the server but `kube`.
- Whatever the driver does there is a sample a second; unknown values are left out and never 0.
- A state change is sent until the server takes it or refuses it for good.
"""
