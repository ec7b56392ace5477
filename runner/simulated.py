"""The simulated runtime: a small server that speaks OpenAI's API, answers after a delay, and holds make-believe memory.

Started by a runner as `python -SE simulated.py OPTIONS`, with the standard library alone. The memory of a GPU is a
folder with one locked file for each process that holds some of it: whoever asks for more than is left ends with "out of
memory", so that a slot too many shows at once. Options make it fail in the ways that real runtimes do.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD_BYTES = 64 * 1024
BODY_BYTES = 32 * 1024 * 1024
TOKENS = 16
MOST_TOKENS = 100_000
LOG_PIECE = b"x" * 127 + b"\n"


class BadRequest(Exception):
    """What a client sent is no request; the text says why."""


@dataclass
class Server:
    """One model. `options`: those of the command line."""

    options: argparse.Namespace
    ready: bool = False
    active: int = 0
    served: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Load, then serve until SIGTERM."""
        options = self.options
        loop = asyncio.get_running_loop()
        terminated = (lambda: say("SIGTERM is ignored")) if options.ignore_sigterm else self.stopped.set
        loop.add_signal_handler(signal.SIGTERM, terminated)
        server = await asyncio.start_server(self._connection, options.host, options.port, limit=HEAD_BYTES)
        say(f"loading {options.model} {options.lora}".rstrip())
        await asyncio.sleep(options.start_seconds)
        if options.die_at_start:
            say("something is missing: the model cannot be loaded")
            os._exit(3)  # asyncio would write of open connections after it, and the last line is the reason
        self.ready = not options.never_ready
        say("ready" if self.ready else "still loading")
        async with server:
            await self.stopped.wait()
        say("stopped")
        os._exit(0)  # streams that still run end here

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                await self._answer(*request, reader, writer)
                await writer.drain()
        except BadRequest as error:
            await send_json(writer, 400, {"error": {"message": str(error)}})
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path == "/health":
            await send_json(writer, 200 if self.ready else 503, {"ready": self.ready, "active": self.active})
        elif not self.ready:
            await send_json(writer, 503, {"error": {"message": "the model is being loaded"}})
        elif path == "/v1/models":
            await send_json(writer, 200, {"object": "list", "data": [{"id": self.options.model, "object": "model"}]})
        elif method != "POST" or path not in {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}:
            await send_json(writer, 404, {"error": {"message": f"there is no {method} {path}"}})
        elif self.active >= self.options.parallel:
            await send_json(writer, 503, {"error": {"message": f"{self.active} requests at once is the most"}})
        else:
            self.active += 1
            try:
                await self._serve(path, asked(body), reader, writer)
            finally:
                self.active -= 1
                self.served += 1
            if 0 < self.options.die_after <= self.served:
                say("illegal memory access")
                os.abort()

    async def _serve(
        self, path: str, request: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        options = self.options
        name = request.get("model") or options.model
        if path == "/v1/embeddings":
            await asyncio.sleep(options.first_token_seconds)
            vector = {"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}
            await send_json(writer, 200, {"object": "list", "model": name, "data": [vector]})
            return
        given = request.get("max_tokens") or request.get("max_completion_tokens")
        count = min(given, MOST_TOKENS) if isinstance(given, int) and given > 0 else options.tokens
        shape = Shape(chat=path.startswith("/v1/chat/"), model=str(name), count=count)
        if request.get("stream"):
            usage = bool((request.get("stream_options") or {}).get("include_usage"))
            await self._stream(shape, writer, reader, usage=usage)
        else:
            words = [word async for word in self._words(count, reader)]
            await send_json(writer, 200, shape.whole("".join(words)))

    async def _stream(
        self, shape: Shape, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, *, usage: bool
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        async for word in self._words(shape.count, reader):
            send_event(writer, shape.part(word))
            await writer.drain()
        send_event(writer, shape.part("", finish="stop"))
        if usage:
            send_event(writer, shape.last())
        send_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    async def _words(self, count: int, reader: asyncio.StreamReader) -> AsyncIterator[str]:
        """So many words at the speed of the model. Raises ConnectionResetError once the client has left."""
        await asyncio.sleep(self.options.first_token_seconds)
        began = time.monotonic()
        for number in range(count):
            due = began + number / self.options.tokens_a_second
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if reader.at_eof():
                say("a client left")
                raise ConnectionResetError
            yield f"word{number} "


@dataclass(frozen=True)
class Shape:
    """An answer as OpenAI's API has it."""

    chat: bool
    model: str
    count: int
    id: str = "sim-1"

    def whole(self, text: str) -> dict[str, Any]:
        """All at once."""
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", **content}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}

    def part(self, text: str, *, finish: str | None = None) -> dict[str, Any]:
        """One event of a stream."""
        content = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        choice = {"index": 0, "finish_reason": finish, **content}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def last(self) -> dict[str, Any]:
        """The event that counts the tokens."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def _head(self, chat_object: str) -> dict[str, Any]:
        kind = chat_object if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": 1, "completion_tokens": self.count, "total_tokens": self.count + 1}


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes] | None:
    """(method, path, body) of the next request; None at the end. Raises BadRequest."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await read_chunks(reader)
    else:
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES:
            raise BadRequest("the length of the body is not one")
        body = await reader.readexactly(int(length))
    return method, rest.partition(" ")[0].partition("?")[0], body


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body. Raises BadRequest."""
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise BadRequest("a chunk without a size") from error
        if size < 0 or len(body) + size > BODY_BYTES:
            raise BadRequest("the body is too long")
        body += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return body


def asked(body: bytes) -> Mapping[str, Any]:
    """The request's JSON object. Raises BadRequest."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise BadRequest("the body is no JSON") from error
    if not isinstance(found, dict):
        raise BadRequest("the body is no object")
    return found


async def send_json(writer: asyncio.StreamWriter, status: int, answer: Mapping[str, Any]) -> None:
    """One whole answer."""
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} Simulated\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def send_event(writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
    """One event of a stream."""
    send_chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def send_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk."""
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def take_memory(folder: Path, uuid: str, need: int, size: int) -> int:
    """Hold so much of the GPU until the process ends; the descriptor that holds it. Exits where there is too little."""
    gpu = folder / uuid
    gpu.mkdir(parents=True, exist_ok=True)
    with (folder / f"{uuid}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used = sum(held_in(entry) for entry in gpu.iterdir())
        if used + need > size:
            say(f"CUDA out of memory: {uuid} has {size - used} of {size} bytes left, and {need} are needed")
            sys.exit(1)
        held = os.open(gpu / str(os.getpid()), os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(held, b"%d" % need)
    return held


def held_in(entry: Path) -> int:
    """Bytes that a process holds; one that has ended holds none, and its file goes."""
    with entry.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0)
    entry.unlink()
    return 0


def held_memory(folder: Path, uuid: str) -> int:
    """Bytes of the GPU that are held now. For tests, and for make-believe measurements."""
    gpu = folder / uuid
    if not gpu.is_dir():
        return 0
    with (folder / f"{uuid}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return sum(held_in(entry) for entry in gpu.iterdir())


def say(text: str) -> None:
    """Write a line of the log."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="simulated", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="simulated")
    parser.add_argument("--lora", default="")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--memory", type=Path, help="the folder that stands for the memory of GPUs")
    parser.add_argument("--gpu", action="append", default=[], help="UUID:BYTES:SIZE")
    parser.add_argument("--start-seconds", type=float, default=1.0)
    parser.add_argument("--first-token-seconds", type=float, default=0.05)
    parser.add_argument("--tokens-a-second", type=float, default=50.0)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer, where the request does not say")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--die-at-start", action="store_true")
    parser.add_argument("--die-after", type=int, default=0, help="so many requests")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--log-bytes", type=int, default=0, help="to write at the start")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve."""
    options = parsed(arguments)
    for gpu in options.gpu:
        uuid, need, size = gpu.rsplit(":", 2)
        take_memory(options.memory, uuid, int(need), int(size))
    left = options.log_bytes
    while left > 0:
        left -= os.write(1, LOG_PIECE * min(8192, -(-left // len(LOG_PIECE))))
    asyncio.run(Server(options).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
