"""Simulate: what happens inside a replica?"""

import streamlit as st

st.title("Simulate", anchor=False)
