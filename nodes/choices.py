"""States of nodes and devices."""

from django.db.models import TextChoices


class Mode(TextChoices):
    """Who allocates the GPUs of a node."""

    EXCLUSIVE = "exclusive", "gpuplane owns every GPU"
    DEVICE_PLUGIN = "device-plugin", "the kubelet's device plugin hands GPUs out"


class Presence(TextChoices):
    """Whether the last inventory listed the device."""

    PRESENT = "present", "present"
    VANISHED = "vanished", "vanished while held"
    REMOVED = "removed", "removed"
    # a removed row is a tombstone: snapshots learn from it that the device is gone; it is deleted later


class NodeState(TextChoices):
    """Whether anything new may be placed on the node."""

    READY = "ready", "ready"
    SUSPECT = "suspect", "agent silent for a moment"
    NOT_READY = "not-ready", "not ready"
    GONE = "gone", "gone"
