"""Passwords guessed at the sign-in page."""

from __future__ import annotations

import asyncio
import itertools
import re
from urllib.parse import urlencode

from tests.attacks.registry import attack
from tests.attacks.target import Target
from tests.attacks.wire import GONE, Wire, connected

NAMES = ("admin", *(f"v{number}" for number in range(49)))
CLIENTS = 16
REFUSED = {401, 429, 503}
SPELLINGS = (
    "{name}", "{name} ", " {name}", "\u3000{name}", "{name}\u3000", "\u2003{name}", "{wide}", "\u3000{wide}", "{upper}",
)  # fmt: skip
WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})


@attack("password-guessing", window="sign-in")
async def password_guessing(target: Target) -> None:
    """Fifty names in every spelling that Django reads alike, each guess with another made-up X-Forwarded-For.

    Eight tries a spelling were let through, each a third of a second of a processor.
    """
    guesses = itertools.count()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(_guess(target, guesses))


async def _guess(target: Target, guesses: itertools.count[int]) -> None:
    while True:
        try:
            async with connected(target.main) as wire:
                cookie, token = await _form(wire)
                for number in guesses:
                    name = NAMES[number % len(NAMES)]
                    spelling = SPELLINGS[number // len(NAMES) % len(SPELLINGS)]
                    typed = spelling.format(name=name, wide=name.translate(WIDE), upper=name.upper())
                    said = {"csrfmiddlewaretoken": token, "username": typed, "password": f"guess-{number}"}
                    headers = {
                        "Cookie": f"csrftoken={cookie}",
                        "Content-Type": "application/x-www-form-urlencoded",
                        "X-Forwarded-For": f"198.51.{number // 256 % 256}.{number % 256}",
                        "X-Real-IP": f"203.0.113.{number % 256}",
                    }
                    answer = await wire.ask("POST", "/sign-in/", body=urlencode(said).encode(), headers=headers)
                    if answer.status not in REFUSED:
                        raise RuntimeError(f"a guess was answered {answer.status}")
        except GONE:
            await asyncio.sleep(0.1)


async def _form(wire: Wire) -> tuple[str, str]:
    """(the cookie, the token of the form)."""
    wire.writer.write(b"GET /sign-in/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await wire.writer.drain()
    head = (await wire.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    cookie = re.search(r"csrftoken=(\w+)", head)
    body = (await wire.reader.readexactly(int(length[1]) if length else 0)).decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', body)
    if cookie is None or token is None:
        raise RuntimeError("the sign-in page has no form")
    return cookie[1], token[1]
