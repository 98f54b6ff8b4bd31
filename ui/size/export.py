"""The link to what is on the page, to copy, and the way to the report."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import streamlit as st


def export(query: Mapping[str, str]) -> None:
    """A button that opens the link and the way to the report."""
    with st.popover("Export", icon=":material/ios_share:"):
        st.caption("This link opens the same question, with today's answer beside it.")
        st.code(address(query), language=None, wrap_lines=True, height=130)
        st.page_link("ui/pages/report.py", label="Report to send or print", icon=":material/description:")


def address(query: Mapping[str, str]) -> str:
    """The page's address with these parameters; only the parameters where the address is not known."""
    return f"{(st.context.url or '').partition('?')[0]}?{urlencode(query)}"
