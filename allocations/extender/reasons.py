"""Reasons that the extender itself gives, beside the engine's: no node names, no odd numbers (DESIGN §4)."""

NOT_REGISTERED = "no devices of the node are registered with gpuplane"
"""True of a node nobody reported and of one that was reported without devices: the picture knows neither."""
BEING_UNDONE = "an earlier attempt of the pod is still being undone"
ELSEWHERE = "the pod already has devices on another node"
RACING = "other pods took the devices first"
BEING_BOUND = "another attempt at binding the pod is under way"
