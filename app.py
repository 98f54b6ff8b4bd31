"""The door: read the link, draw the scenario form, run the page, write the link. serve.py serves it."""

import streamlit as st

from ui import answers, form, health, link, login, look
from ui.visit import visit, while_wanted
from ui.words import plain

st.set_page_config(page_title="GPUs for LLM serving", page_icon="ui/icon.svg", layout="wide", initial_sidebar_state=360)

look.mend()
login.require()
page = st.navigation(
    [
        st.Page("ui/pages/size.py", title="Size", icon=":material/straighten:", default=True),
        st.Page("ui/pages/compare.py", title="Compare", icon=":material/table_rows:", url_path="compare"),
        st.Page("ui/pages/curves.py", title="Curves", icon=":material/show_chart:", url_path="curves"),
        st.Page("ui/pages/simulate.py", title="Simulate", icon=":material/stacked_line_chart:", url_path="simulate"),
        st.Page("ui/pages/calibrate.py", title="Calibrate", icon=":material/speed:", url_path="calibrate"),
        st.Page("ui/pages/report.py", title="Report", icon=":material/description:", url_path="report"),
        st.Page("ui/pages/method.py", title="Method", icon=":material/menu_book:", url_path="method"),
    ],
    position="top",
)
form.open_link()
scenario = form.draw()
login.account()
if visit().link_problems:
    st.warning("  \n".join(map(plain, visit().link_problems)), title="This link was not taken as it stands")
visit().gpus_found = None
visit().shown = {}
if not health.has_first_answer():
    with st.spinner(health.GETTING_READY):
        health.wait_for_first_answer()
with while_wanted():
    page.run()
query = link.to_query(scenario, visit().gpus_found, answers.stamp(scenario))
st.query_params.from_dict(query | visit().shown)
