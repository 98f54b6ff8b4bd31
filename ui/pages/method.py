"""Method: why should one trust the answer?"""

import streamlit as st

st.title("Method", anchor=False)
