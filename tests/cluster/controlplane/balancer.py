"""One address for several replicas: connections go round, TCP only. Run as `python -m … LISTEN TARGET…` (ports of
loopback).

A replica that refuses is passed over, as a Service does with a pod that is not ready.
"""

import asyncio
import itertools
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def _serve(port: int, targets: list[int]) -> None:
    turn = itertools.cycle(targets)

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in targets:
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", next(turn))
            except ConnectionError:
                continue
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            return
        writer.close()

    server = await asyncio.start_server(joined, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), [int(word) for word in sys.argv[2:]]))
