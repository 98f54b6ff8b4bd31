"""Calibrate: what is the answer based on, and how to measure one's own?"""

import streamlit as st

st.title("Calibrate", anchor=False)
