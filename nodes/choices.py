"""States of nodes and devices."""

from django.db.models import TextChoices


class Mode(TextChoices):
    """Who hands out the GPUs of a node (DESIGN §3, Nodes)."""

    EXCLUSIVE = "exclusive", "gpuplane owns every GPU"
    DEVICE_PLUGIN = "device-plugin", "the kubelet's device plugin hands GPUs out"


class Presence(TextChoices):
    """Whether the last inventory listed the device."""

    PRESENT = "present", "present"
    VANISHED = "vanished", "vanished while held"
    REMOVED = "removed", "removed"
    # A removed row is a tombstone: it tells pictures that the device is gone, and is deleted later.


class NodeState(TextChoices):
    """Whether anything new may be placed on the node."""

    READY = "ready", "ready"
    SUSPECT = "suspect", "agent silent for a moment"
    NOT_READY = "not-ready", "not ready"
    GONE = "gone", "gone"
