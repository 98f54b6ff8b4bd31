"""The app as a team's server runs it: with an endpoint for probes, and links that outlive a login.

Start with: streamlit run serve.py
"""

import streamlit as st
from starlette.middleware import Middleware
from starlette.routing import Route

from ui.after_login import ReturnToLink
from ui.health import Health

health = Health()
app = st.App(
    "app.py",
    lifespan=health.while_serving,
    routes=[Route("/healthz", health.respond)],
    middleware=[Middleware(ReturnToLink)],
)
