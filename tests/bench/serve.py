"""The built-in logger's `/metrics`, served as vLLM serves it: rendered on the event loop that streams tokens."""

import asyncio

import uvicorn
from prometheus_client import REGISTRY, make_asgi_app


async def serve_builtin(port: int) -> None:
    """Answer on `port` until cancelled."""
    server = uvicorn.Server(uvicorn.Config(make_asgi_app(REGISTRY), host="127.0.0.1", port=port, log_level="error"))
    try:
        await server.serve()
    except asyncio.CancelledError:
        server.force_exit = True
