"""Kinds of events. A kind is stable: filters, pages and tests name it."""

from django.db.models import TextChoices


class Kind(TextChoices):
    """One per state change that the product knows."""

    NODE_REGISTERED = "node.registered", "Node registered"
    NODE_INVENTORY = "node.inventory", "Node inventory changed"
    NODE_HEALTH = "node.health", "Node health changed"
    NODE_REMOVED = "node.removed", "Node removed"
    DEVICE_HEALTH = "device.health", "Device health changed"
    DEVICE_TAKEN = "device.taken", "Device taken by a stranger"
    CLAIM_CREATED = "claim.created", "Claim created"
    CLAIM_CHANGED = "claim.changed", "Claim changed"
    CLAIM_DELETED = "claim.deleted", "Claim deleted"
    CLAIM_RENEWED = "claim.renewed", "Claim renewed"
    ALLOCATION_HELD = "allocation.held", "Devices held"
    ALLOCATION_RESERVED = "allocation.reserved", "Devices reserved"
    ALLOCATION_BOUND = "allocation.bound", "Pod bound"
    ALLOCATION_RELEASING = "allocation.releasing", "Devices being returned"
    ALLOCATION_RELEASED = "allocation.released", "Devices returned"
    ALLOCATION_FAILED = "allocation.failed", "Attempt failed, devices returned"
    ALLOCATION_ADOPTED = "allocation.adopted", "Running pod adopted"
    ALLOCATION_CORRECTED = "allocation.corrected", "Devices are others than written"
    ALLOCATION_EVICTED = "allocation.evicted", "Pod asked to go"
    ALLOCATION_EXPIRED = "allocation.expired", "Time of the allocation ended"
    POD_REFUSED = "pod.refused", "Pod cannot be placed"
    DIFFERENCE = "reconcile.difference", "Ledger and cluster differ"
    ACCESS_CHANGED = "access.changed", "Access changed"
    SIGNED_IN = "access.signed-in", "Signed in"
    SIGN_IN_FAILED = "access.sign-in-failed", "Sign-in failed"
