#!/usr/bin/env python3
"""One address for several nodes, as a load balancer has: front.py PORT NODE_PORT... A connection goes to any node that takes it, and ends
with the node's."""
import asyncio, random, sys

port, nodes = int(sys.argv[1]), [int(p) for p in sys.argv[2:]]


async def copy(source, to):
    try:
        while data := await source.read(1 << 18):
            to.write(data)
            await to.drain()
    finally:
        to.close()


async def serve(reader, writer):
    for node in random.sample(nodes, len(nodes)):
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", node)
        except OSError:
            continue
        await asyncio.gather(copy(reader, forth), copy(back, writer), return_exceptions=True)
        return
    writer.close()


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


asyncio.run(main())
