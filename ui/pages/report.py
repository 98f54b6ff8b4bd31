"""Report: what to send to those who decide."""

import streamlit as st

st.title("Report", anchor=False)
