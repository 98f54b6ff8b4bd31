"""The door: read the link, draw the scenario form, run the page, write the link. Start with: streamlit run app.py"""

import streamlit as st

from ui import form, link
from ui.words import plain

st.set_page_config(page_title="GPUs for LLM serving", page_icon="ui/icon.svg", layout="wide", initial_sidebar_state=360)

page = st.navigation(
    [
        st.Page("ui/pages/size.py", title="Size", icon=":material/straighten:", default=True),
        st.Page("ui/pages/curves.py", title="Curves", icon=":material/show_chart:", url_path="curves"),
    ],
    position="top",
)
form.open_link()
scenario = form.draw()
if st.session_state.link_problems:
    st.warning("  \n".join(map(plain, st.session_state.link_problems)), title="This link was not taken as it stands")
st.session_state.gpus_found = None
page.run()
st.session_state.written = link.to_query(scenario, st.session_state.gpus_found)
st.query_params.from_dict(st.session_state.written)
st.session_state.settled = True
