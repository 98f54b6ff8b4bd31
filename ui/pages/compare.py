"""Compare: which GPU, TP and precision?"""

import streamlit as st

st.title("Compare", anchor=False)
