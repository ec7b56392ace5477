"""The order of agents' frames that change the database, over all sessions and web processes.

Called by the services that store such frames, in their transactions, before they lock devices. `nodes.live.samples`
orders the frames that one process takes; a session that was cut off may still have a frame on its way in one process
while its agent has said something newer to another. Invariant: of two frames of a node's agent the newer one counts,
whichever is stored first.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q

from access.errors import Unavailable
from agent.protocol import OTHER_BOOT_SECONDS, AgentFrame
from nodes.models import Node


class FrameStamp(NamedTuple):
    """What orders a frame: boot and number of the agent, and its time in seconds since 1970."""

    boot: str
    seq: int
    time: float

    @staticmethod
    def of(frame: AgentFrame) -> FrameStamp:
        """The stamp of a frame."""
        return FrameStamp(frame.boot, frame.seq, frame.time)


def frame_accept(*, node: Node, frame: FrameStamp, now: datetime) -> None:
    """Record the frame as the node's newest, and lock the node. Raises Unavailable where a newer one was stored.

    `now` may be from before the lock was waited for: only a frame that was stored well after it says that the clock was
    set back.
    """
    span = timedelta(seconds=OTHER_BOOT_SECONDS)
    other_boot = ~Q(frame_boot=frame.boot) & (
        Q(frame_stored_at=None)
        | Q(frame_time__lt=frame.time)
        | Q(frame_stored_at__lte=now - span)
        | Q(frame_stored_at__gt=now + span)
    )
    newest = Node.objects.filter(Q(frame_boot=frame.boot, frame_seq__lt=frame.seq) | other_boot, pk=node.pk)
    values = {"frame_boot": frame.boot, "frame_seq": frame.seq, "frame_time": frame.time, "frame_stored_at": now}
    if not newest.update(**values):
        raise Unavailable("a newer frame of the agent was stored before; number it anew")
