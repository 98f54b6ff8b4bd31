"""The app as it is served: behind its gate, with an API, an endpoint for probes, and links that outlive a login.

Start with: make app, or on a team's server: streamlit run serve.py
"""

import asyncio
import gc
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware
from starlette.routing import Route
from streamlit.web.server.server_util import get_url

from api.routes import keys_as_set_up, routes, workers_as_set_up
from sizing.__main__ import OBJECTS_BETWEEN_COLLECTIONS
from sizing.errors import ScenarioError
from ui import computing
from ui.gate import Gate, most_sessions
from ui.health import Health
from ui.login import ReturnToLink, check_domains, check_secrets

gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # while the modules load
SERVED_BETWEEN_COLLECTIONS = 10_000
"""Objects of pages that are drawn: what a page leaves behind is in cycles, and is garbage until it is looked for."""
health = Health()


def load() -> None:
    """Import what the first page needs, and leave it out of every search for garbage from then on."""
    for name in ("ui.form", "ui.views.answer"):
        import_module(name)
    gc.freeze()
    gc.set_threshold(SERVED_BETWEEN_COLLECTIONS)


@asynccontextmanager
async def serving(app: st.App) -> AsyncIterator[None]:
    """From start to end; a browser is opened where Streamlit is told that there is one (`server.headless`).

    What the pages import is loaded meanwhile, so that the first visitor need not wait for it.
    """
    computing.use(workers, asyncio.get_running_loop())
    loading = asyncio.create_task(to_thread.run_sync(load))
    async with health.while_serving(app):
        if not st.get_option("server.headless"):
            await to_thread.run_sync(webbrowser.open, get_url("localhost"))
        yield
    loading.cancel()
    computing.stop_using()
    workers.end()


try:
    check_domains()
    check_secrets()
    keys_as_set_up()
    room, workers = most_sessions(), workers_as_set_up(computing.first_answer)
except (ValueError, ScenarioError) as wrong:
    print(f"error: {wrong}", file=sys.stderr)
    sys.exit(2)
app = st.App(
    "app.py",
    lifespan=serving,
    routes=[Route("/healthz", health.respond), *routes(workers)],
    middleware=[Middleware(Gate, most_sessions=room), Middleware(ReturnToLink)],
)
