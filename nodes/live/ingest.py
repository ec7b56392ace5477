"""Agents' frames: `WS /ws/agents/<node>/` as a plain ASGI endpoint, and single frames by POST.

Called by `gpuplane.listeners.agents`, which authenticates the caller. Invariants: a sample touches memory only; a bad
frame ends the session of its agent and nothing else; a frame that changes the database (inventory, health, checkpoint)
is acknowledged after its transaction. Close codes: 1003 text instead of binary, 1008 a rule is broken (the reason says
which), 1009 too large, 1011 internal error, 1012 the token has to be presented again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
import structlog
from prometheus_client import Counter, Gauge

from access.actors import Actor
from access.choices import TokenScope
from access.errors import BadInput, GpuplaneError, Unavailable
from agent.protocol import (
    MOST_DEVICES,
    Ack,
    AgentFrame,
    BadFrame,
    Checkpoint,
    Details,
    FrameError,
    FrameTooLarge,
    Health,
    Hello,
    Inventory,
    Sample,
    decode_received,
    encode,
)
from kube.device_types import GPU
from nodes import inventory, services
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.frame_order import FrameStamp
from nodes.live import agent_liveness, flush
from nodes.live.message_extension import AT_ONCE
from nodes.live.rate_limit import TooFast
from nodes.live.sample_lag import note_lag
from nodes.live.samples import TABLE, FrameResult, SampleTable
from nodes.live.threads import in_database_thread
from storage.clock import database_now

HELLO_SECONDS: Final = 10.0
POLICY, TOO_LARGE, NOT_BINARY, OUR_FAILURE = 1008, 1009, 1003, 1011
SIGN_IN_AGAIN: Final = 1012
SESSION_SECONDS: Final = 3600.0
"""Length of a session, ±10 % so that agents do not reconnect at once: tokens are short-lived, and may be revoked."""
LATE_SECONDS: Final = 20.0
"""A frame whose turn in the database threads comes later is not stored: its agent waits 30 s for the ack."""
INLINE_BYTES: Final = 32 * 1024
"""Longer frames are decoded in a thread. A sample has 0.4 KiB, an inventory about 10."""
_READERS: Final = ThreadPoolExecutor(2, thread_name_prefix="frame")
LONGEST_REASON: Final = 120
"""A close frame carries at most 123 bytes of reason."""

FRAMES = Counter("gpuplane_agent_frames", "Frames taken from agents", ["kind"])
REFUSED = Counter("gpuplane_agent_frames_refused", "Frames refused or dropped", ["reason"])
UNREADABLE = Counter("gpuplane_agent_values_unreadable", "Values of samples that were not finite or out of bounds")
SESSIONS = Gauge("gpuplane_agent_sessions", "Open agent sessions of this process")
_SAMPLES = FRAMES.labels("sample")

log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


Result = TypeVar("Result")
Stamped = TypeVar("Stamped", bound=AgentFrame)


class Record:
    """Stores the frames that change the database, in a database thread. All methods raise GpuplaneError."""

    async def inventory(self, node: str, frame: Inventory, actor: Actor) -> tuple[str, ...] | None:
        """Store the node's inventory; the UUIDs of its GPUs by minor, without MIG instances, None where the frame does
        not list GPUs.
        """

        def store() -> tuple[str, ...] | None:
            shape = inventory.parse_node(dict(frame.node), name=node, strict=False).of_agent()
            if len(shape.gpus) > MOST_DEVICES:
                raise BadInput(
                    f"a node has at most {MOST_DEVICES} GPUs, this one names {len(shape.gpus)}",
                    field="devices",
                    rule="too-many",
                )
            services.inventory_put(shape=shape, actor=actor, now=database_now(), frame=FrameStamp.of(frame))
            return shape.gpus if shape.owns(GPU) else None

        return await _stored(store)

    async def health(self, node: str, frame: Health, actor: Actor) -> None:
        """Store the health of devices, by UUID."""
        stamp = FrameStamp.of(frame)
        await _stored(
            lambda: services.devices_health(
                node_name=node, health=frame.health, actor=actor, now=database_now(), frame=stamp
            )
        )

    async def checkpoint(self, node: str, frame: Checkpoint, actor: Actor) -> None:
        """Store what the kubelet gave to containers."""
        given = [CheckpointGrant(one.pod_uid, one.container, one.resource, tuple(one.devices)) for one in frame.entries]
        stamp = FrameStamp.of(frame)
        await _stored(
            lambda: checkpoint_put(node_name=node, entries=given, actor=actor, now=database_now(), frame=stamp)
        )


async def _stored(work: Callable[[], Result]) -> Result:
    """Run `work` in a database thread. Raises Unavailable where the database is away, or the turn comes too late."""
    latest = time.monotonic() + LATE_SECONDS

    def in_time() -> Result:
        if time.monotonic() > latest:
            raise Unavailable("its turn came too late; send it again")
        return work()

    try:
        return await in_database_thread(in_time)
    except agent_liveness.TEMPORARY as error:
        raise Unavailable("the database is away; send it again") from error


RECORD = Record()


class Session:
    """State of one connection of an agent, or of one POST."""

    def __init__(self, node: str, actor: Actor, *, table: SampleTable, record: Record) -> None:
        self.node = node
        self.actor = actor
        self.table = table
        self.record = record
        self.boot = ""
        self.until = float("inf")
        """Monotonic seconds at which the session ends."""
        self.is_waiting = False
        """Whether the session's task has handled everything that came, and waits for the next frame."""

    def take_at_once(self, body: bytes) -> bool:
        """Take a sample where it arrives, without waking the session's task; False, and nothing done, for all that
        needs an answer or an error, which is the task's to give.
        """
        if not self.is_waiting or len(body) > INLINE_BYTES:
            return False
        now = time.monotonic()
        if now > self.until or self.table.boot_of(self.node) != self.boot:
            return False
        try:
            frame = decode_received(body)
            if not isinstance(frame, Sample) or frame.boot != self.boot or not self.table.knows_order(self.node):
                return False
            self.table.rate_limits.take(self.node, now)
            return self.sample(frame, now=now, epoch=time.time()) is None
        except FrameError:
            return False

    async def take(self, frame: AgentFrame, *, now: float, epoch: float) -> Ack | None:
        """Handle one frame; the ack, None for samples and details that need none. Raises FrameError.

        `now` monotonic seconds, `epoch` seconds since 1970.
        """
        if isinstance(frame, Sample):
            return self.sample(frame, now=now, epoch=epoch)
        frame = _not_after(frame, epoch)
        if isinstance(frame, Details):
            taken, unreadable = self.table.put_details(self.node, frame, now=now, received_at=epoch)
            UNREADABLE.inc(unreadable)
            if taken is FrameResult.NEW:
                FRAMES.labels("details").inc()
            return self._ack_dropped(taken, frame, epoch)
        if isinstance(frame, Hello) and frame.node != self.node:
            raise BadFrame(f"hello names another node than the path: {frame.node[:60]}")
        FRAMES.labels(type(frame).__name__.lower()).inc()
        if self.table.advance(self.node, boot=frame.boot, seq=frame.seq, time=frame.time, now=now) is FrameResult.OLD:
            REFUSED.labels("old").inc()
            return Ack(frame.boot, frame.seq, epoch, "older than a frame already taken; number it anew", again=True)
        if isinstance(frame, Hello):
            self.boot = frame.boot
            if frame.devices:
                self.table.order(self.node, frame.devices)
            return Ack(frame.boot, frame.seq, epoch, "", self._want())
        if not self.table.rate_limits.may_change(self.node, now):
            REFUSED.labels("too-many-changes").inc()
            return Ack(frame.boot, frame.seq, epoch, "too many changes at once; say it again later", again=True)
        problem, again = "", False
        try:
            if isinstance(frame, Inventory):
                order = await self.record.inventory(self.node, frame, self.actor)
                if order is not None:
                    self.table.order(self.node, order)
            elif isinstance(frame, Checkpoint):
                await self.record.checkpoint(self.node, frame, self.actor)
            else:
                await self.record.health(self.node, frame, self.actor)
        except GpuplaneError as error:
            REFUSED.labels("bad-value" if isinstance(error, BadInput) else "not-stored").inc()
            problem, again = str(error), isinstance(error, Unavailable)
        return Ack(frame.boot, frame.seq, epoch, problem, self._want(), again)

    def sample(self, frame: Sample, *, now: float, epoch: float) -> Ack | None:
        """As `take`, of a sample. Raises BadFrame."""
        sent = frame.time
        taken, unreadable = self.table.put(self.node, _not_after(frame, epoch), now=now, received_at=epoch)
        if unreadable:
            UNREADABLE.inc(unreadable)
        if taken is FrameResult.NEW:
            _SAMPLES.inc()
            note_lag(sent=sent, received=epoch)
        return self._ack_dropped(taken, frame, epoch)

    def _ack_dropped(self, taken: FrameResult, frame: Sample | Details, epoch: float) -> Ack | None:
        """The ack of a sample or details: None unless the order of devices is not known."""
        if taken is FrameResult.NEW:
            return None
        REFUSED.labels(str(taken)).inc()
        if taken is FrameResult.NO_ORDER:
            return Ack(frame.boot, frame.seq, epoch, "the order of the node's devices is not known", self._want())
        return None

    def _want(self) -> str:
        return "" if self.table.knows_order(self.node) else "inventory"


def _not_after(frame: Stamped, epoch: float) -> Stamped:
    """The frame, with its time no later than now: a later boot with a correct clock would look like a replay."""
    return msgspec.structs.replace(frame, time=epoch) if frame.time > epoch else frame


def is_agent_of(actor: Actor, *, node: str) -> bool:
    """Whether the caller is the node's own agent. The listener checks it too."""
    return actor.scope == TokenScope.AGENT and actor.node == node


async def agent_socket(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    node: str,
    actor: Actor,
    table: SampleTable = TABLE,
    record: Record = RECORD,
) -> None:
    """Serve one agent's session, from `websocket.connect` to its end."""
    if (await receive())["type"] != "websocket.connect":
        return
    if not is_agent_of(actor, node=node):
        await send({"type": "websocket.close", "code": POLICY, "reason": "only its agent may speak for a node"})
        return
    flush.ensure_running()
    await send({"type": "websocket.accept"})
    session = Session(node, actor, table=table, record=record)
    with SESSIONS.track_inprogress():
        try:
            lasts = SESSION_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311 - jitter, no secret
            session.until = time.monotonic() + lasts
            offer = scope.get("extensions", {}).get(AT_ONCE)
            if offer is not None:
                offer(session.take_at_once)
            await _talk(session, receive, send)
        except FrameTooLarge as error:
            await _close(send, session, TOO_LARGE, error.reason, str(error))
        except _SessionExpired:
            await _close(send, session, SIGN_IN_AGAIN, "sign-in", "sign in again")
        except TimeoutError:
            await _close(send, session, POLICY, "no-hello", f"no hello within {HELLO_SECONDS:.0f} s")
        except FrameError as error:
            await _close(send, session, POLICY, error.reason, str(error))
        except Exception:  # a defect of ours ends this session only, with a code that says so
            log.exception("agent.session_failed", node=node)
            await _close(send, session, OUR_FAILURE, "failure", "gpuplane failed; connect again")


class _SessionExpired(Exception):
    """SESSION_SECONDS are over."""


async def _talk(session: Session, receive: Receive, send: Send) -> None:
    """Answer frames until the peer leaves. Raises FrameError, _SessionExpired and, without a hello, TimeoutError."""
    async with asyncio.timeout(HELLO_SECONDS):
        body = await _next(receive)
    if body is None:
        return
    if not isinstance(frame := await _decoded(body), Hello):
        raise BadFrame("the first frame of a session is hello")
    rate_limits = session.table.rate_limits
    while True:
        rate_limits.take(session.node, time.monotonic())
        if session.boot and frame.boot != session.boot:
            raise BadFrame("a session has one boot id; connect again for another")
        ack = await session.take(frame, now=time.monotonic(), epoch=time.time())
        if not session.boot:
            raise BadFrame("this hello is older than a frame already taken")
        if session.table.boot_of(session.node) not in {"", session.boot}:
            raise Superseded("another agent of this node has begun")
        if ack is not None:
            await send({"type": "websocket.send", "bytes": encode(ack)})
        if time.monotonic() > session.until:
            raise _SessionExpired
        del frame, ack, body  # thousands of sessions wait here, and need no memory for these
        session.is_waiting = True
        try:
            body = await _next(receive)
        finally:
            session.is_waiting = False
        if body is None:
            return
        frame = await _decoded(body)


async def _decoded(body: bytes) -> AgentFrame:
    """Decode a frame, a long one in a thread. Raises FrameError."""
    if len(body) <= INLINE_BYTES:
        return decode_received(body)
    return await asyncio.get_running_loop().run_in_executor(_READERS, decode_received, body)


async def _next(receive: Receive) -> bytes | None:
    """The next frame's bytes; None when the peer has left. Raises NotBinary."""
    message = await receive()
    if message["type"] != "websocket.receive":
        return None
    body: bytes | None = message.get("bytes")
    if body is None:
        raise NotBinary("frames are binary")
    return body


class Superseded(BadFrame):
    """Another agent of the node began later; the last one wins."""

    reason = "superseded"


class NotBinary(BadFrame):
    """A text message."""

    reason = "text"


async def _close(send: Send, session: Session, code: int, reason: str, words: str) -> None:
    REFUSED.labels(reason).inc()
    log.warning("agent.session_closed", node=session.node, code=code, reason=reason, why=words)
    if reason == NotBinary.reason:
        code = NOT_BINARY
    cut = words.encode()[:LONGEST_REASON].decode(errors="ignore")
    try:
        await send({"type": "websocket.close", "code": code, "reason": cut})
    except (OSError, RuntimeError):  # the peer left first; uvicorn says so in either way
        log.debug("agent.left_first", node=session.node)


async def answer_frame(
    body: bytes, *, node: str, actor: Actor, table: SampleTable = TABLE, record: Record = RECORD
) -> tuple[int, bytes]:
    """(status, ack frame) of one frame by POST; a sample then carries its `devices`.

    200 taken, or an old sample dropped; 400 a bad frame; 403; 409 not usable now (`problem` says why, `want` what is
    missing); 413 too large; 429 over the node's rate limit, which sockets and posts share.
    """
    now, epoch = time.monotonic(), time.time()
    if not is_agent_of(actor, node=node):
        return 403, encode(Ack("", 0, epoch, "only its agent may speak for a node"))
    flush.ensure_running()
    session = Session(node, actor, table=table, record=record)
    try:
        table.rate_limits.take(node, now)
        frame = await _decoded(body)
        ack = await session.take(frame, now=now, epoch=epoch)
    except TooFast as error:
        REFUSED.labels(error.reason).inc()
        return 429, encode(Ack("", 0, epoch, str(error), again=True))
    except FrameError as error:
        REFUSED.labels(error.reason).inc()
        return (413 if isinstance(error, FrameTooLarge) else 400), encode(Ack("", 0, epoch, str(error)))
    if ack is None:
        return 200, encode(Ack(frame.boot, frame.seq, epoch))
    return (409 if ack.problem else 200), encode(ack)
