"""The yardstick of the proxy's cells: the same job in Python, as the usual demonstrations do it.

    python bench/python_proxy.py PORT PREFILL DECODE

One process of aiohttp, server and client, with kept connections: a request goes to the prefill instance with one token,
then as it came to the decode instance, whose bytes are passed on.
"""

import json
import sys

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web


def application(prefill, decode):
    async def start(app):
        app["session"] = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600))

    async def stop(app):
        await app["session"].close()

    async def generate(request):
        session, raw = request.app["session"], await request.read()
        body = json.loads(raw)
        first = {**body, "max_tokens": 1, "stream": False}
        async with session.post(f"http://{prefill}{request.path}", json=first) as answer:
            answer.raise_for_status()
            await answer.read()
        headers = {"Content-Type": "application/json"}
        async with session.post(f"http://{decode}{request.path}", data=raw, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
        return response

    app = web.Application(client_max_size=64 << 20)
    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    app.router.add_post("/v1/completions", generate)
    app.router.add_post("/v1/chat/completions", generate)
    return app


if __name__ == "__main__":
    port, prefill, decode = sys.argv[1:]
    web.run_app(application(prefill, decode), host="127.0.0.1", port=int(port), access_log=None, print=None)
