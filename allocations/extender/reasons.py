"""Reasons that the extender gives beside the engine's. They name no nodes and no numbers."""

from __future__ import annotations

from typing import Final

from allocations.engine.decision import Reason

NOT_REGISTERED: Final = Reason(
    "no devices of the node are registered with gpuplane", resolvable=False, kind="not-registered"
)
"""True of a node that nobody reported and of one without devices: the snapshot has neither."""
BEING_UNDONE: Final = Reason(
    "an earlier attempt of the pod is still being undone", resolvable=False, kind="being-undone"
)
"""No other pod's end would help."""
ELSEWHERE: Final = Reason("the pod already has devices on another node", resolvable=False, kind="elsewhere")
RACING: Final = Reason("other pods took the devices first", resolvable=True, kind="racing")
BEING_BOUND: Final = Reason("another attempt at binding the pod is under way", resolvable=False, kind="being-bound")
LEDGER_AWAY: Final = Reason("the ledger cannot be reached at the moment", resolvable=False, kind="ledger-away")


def malformed(problem: str) -> Reason:
    """The pod's own fields cannot be read, or are not a pod's."""
    return Reason(problem, resolvable=False, kind="pod-malformed")
