"""Sizing by the usual method."""

import streamlit as st


def page(scenario):
    st.title("x")
