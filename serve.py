"""The app as it is served: behind its gate, with an API, an endpoint for probes, and links that outlive a login.

Start with: make app, or on a team's server: streamlit run serve.py
"""

import asyncio
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware
from starlette.routing import Route
from streamlit.web.server.server_util import get_url

from api.routes import routes, workers_as_set_up
from sizing.errors import ScenarioError
from ui import computing
from ui.gate import Gate, most_sessions
from ui.health import Health
from ui.login import ReturnToLink

health = Health()


@asynccontextmanager
async def serving(app: st.App) -> AsyncIterator[None]:
    """From start to end; a browser is opened where Streamlit is told that there is one (`server.headless`)."""
    computing.use(workers, asyncio.get_running_loop())
    async with health.while_serving(app):
        if not st.get_option("server.headless"):
            await to_thread.run_sync(webbrowser.open, get_url("localhost"))
        yield
    computing.stop_using()
    workers.end()


try:
    room, workers = most_sessions(), workers_as_set_up()
except (ValueError, ScenarioError) as wrong:
    print(f"error: {wrong}", file=sys.stderr)
    sys.exit(2)
app = st.App(
    "app.py",
    lifespan=serving,
    routes=[Route("/healthz", health.respond), *routes(workers)],
    middleware=[Middleware(Gate, most_sessions=room), Middleware(ReturnToLink)],
)
