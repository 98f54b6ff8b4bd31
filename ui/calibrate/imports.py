"""Import: the file of another tool, a points table or an exported run, looked at before it is taken in."""

from __future__ import annotations

import re
from typing import cast

import streamlit as st
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.uploaded_file_manager import UploadedFile

from calibration.errors import CalibrationError
from calibration.importers import KINDS
from calibration.incoming import MOST_UPLOAD_BYTES, POINTS_TABLE, Upload, take_in
from calibration.store import Store
from sizing.curves import Point
from sizing.errors import SizingError
from ui import calibrating
from ui.calibrate.review import review
from ui.calibrate.runs import show_run
from ui.words import plain

state = st.session_state

TOLD = "Told from the file"
KIND_NAMES = {
    POINTS_TABLE: "Points table (CSV)",
    "aiperf": "AIPerf",
    "genai-perf": "GenAI-Perf",
    "perf-analyzer": "Perf Analyzer",
    "guidellm": "GuideLLM",
    "vllm": "vLLM bench serve",
    "op-stats": "op_stats_csv of the TensorRT-LLM clients",
}
TEXTS = {
    "model": "Model",
    "precision": "Precision",
    "gpu": "GPU",
    "engine": "Engine",
    "engine_version": "Engine version",
    "batching": "Batching",
}
WHOLE = {"tp": "TP (GPUs)", "pp": "PP", "max_batch_size": "Max batch size", "concurrency": "Concurrency (users)"}
REAL = {"isl": "Input (tokens)", "osl": "Output (tokens)", "rate": "Rate (requests/s)"}
FIELD_NAMES = {**TEXTS, **WHOLE, **REAL, "arrivals": "Arrivals"}
LAWS = ("", "poisson", "constant", "gamma")


def import_view(store: Store) -> None:
    """The whole view."""
    tools = ", ".join(KIND_NAMES[kind] for kind in KINDS)
    st.markdown(f"A run exported from another store (.zip), a points table, or a file of {tools}.")
    number = state.setdefault("import_number", 0)  # a new uploader, an empty one, after each file that is taken in
    left, right = st.columns([2, 1])
    file = left.file_uploader("File", key=f"import_{number}", max_upload_size=MOST_UPLOAD_BYTES // 1_000_000)
    names = {TOLD: TOLD, **KIND_NAMES}
    kind = right.selectbox("Written by", list(names), format_func=names.__getitem__, key="import_kind")
    said = _said()
    _let_go_of_all_but(file)
    if file is None:
        st.caption("Nothing is kept before you have seen the points and accepted them.")
        return
    _looked_at(store, _upload(file, kind, said))


def _let_go_of_all_but(file: UploadedFile | None) -> None:
    """Free the file before this one, taken in or left behind: Streamlit holds each for as long as the page is open."""
    before, now = state.get("import_held"), file and file.file_id
    context = get_script_run_ctx()
    if context and before and before != now:
        cast(MemoryUploadedFileManager, context.uploaded_file_mgr).remove_file(context.session_id, before)
    state.import_held = now


def _said() -> dict[str, object]:
    """What the file leaves out."""
    with st.expander("What the file does not say of the deployment and the load"):
        columns = st.columns(3)
        drawn = [*TEXTS, *WHOLE, *REAL]
        for number, name in enumerate(drawn):
            column, title, key = columns[number % 3], FIELD_NAMES[name], f"import_{name}"
            if name in TEXTS:
                column.text_input(title, max_chars=120, key=key)
            elif name in WHOLE:
                column.number_input(title, 1, 1_000_000, None, step=1, key=key)
            else:
                column.number_input(title, 0.001, 1_000_000.0, None, format="%g", key=key)
        columns[len(drawn) % 3].selectbox("Arrivals", LAWS, format_func=lambda law: law or TOLD, key="import_arrivals")
    values = {name: state[f"import_{name}"] for name in FIELD_NAMES}
    return {name: value.strip() if isinstance(value, str) else value for name, value in values.items() if value}


def _upload(file: UploadedFile, kind: str, said: dict[str, object]) -> Upload:
    return Upload(file.name, file.getvalue(), None if kind == TOLD else kind, tuple(sorted(said.items())))


def _looked_at(store: Store, upload: Upload) -> None:
    """The points in the file, or what is wrong with it, and the button that takes them in."""
    with st.spinner("Reading the file…"):
        points = calibrating.read(upload)
    if isinstance(points, str):
        st.error(plain(_in_fields(points)), title="This file was not taken", icon=":material/block:")
        return
    void = sum(point.void for point in points)
    st.markdown(f"**{plain(upload.shown_name)}: {len(points)} points**, {void} of them void. {_about(points)}")
    st.button(
        f"Accept {len(points)} points",
        type="primary",
        icon=":material/check:",
        on_click=_take_in,
        args=(store, upload),
        help="They are kept, and answers for this deployment then rest on them.",
    )
    review(points, "import")


def _about(points: tuple[Point, ...]) -> str:
    days = sorted({point.measured_at[:10] for point in points if point.measured_at})
    return plain(f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else "The file gives no date.")


def _take_in(store: Store, upload: Upload) -> None:
    try:
        run_id, new = take_in(store, upload)
    except (CalibrationError, SizingError) as error:
        state.calibrate_refused = str(error)
        return
    state.import_number += 1
    _let_go_of_all_but(None)
    calibrating.forget_points()
    state.calibrate_done = (
        f"Run {run_id}{' holds the points' if new else ' had these points already; they are accepted'}."
    )
    show_run(run_id)


def _in_fields(message: str) -> str:
    """The message of the command line with its options called as the fields above are."""
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda found: _field(found[1]), message)


def _field(option: str) -> str:
    name = FIELD_NAMES.get(option.replace("-", "_"))
    return f"“{name}”" if name else f"--{option}"
