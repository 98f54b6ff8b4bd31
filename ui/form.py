"""The scenario form in the sidebar: widgets hold the values, `draw` returns them as one Scenario.

Every widget that takes its value from session state has ``persist_state``. Without it the browser is told that value in
one run only: a browser that draws the widget after another run has begun shows the widget's own default, and sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from sizing import catalog
from sizing.errors import CatalogueError, ScenarioError
from sizing.estimate.checkpoints import MOST_BYTES, own, parse
from sizing.numbers import per_second
from sizing.question import (
    ARRIVAL_CV,
    ARRIVAL_SIZE,
    HEADROOM,
    LIMIT_S,
    PEAK_FACTOR,
    PRICE,
    QUEUE,
    RATE,
    SPARE,
    TIMEOUT_S,
    TOKENS,
    VARIATION,
    Range,
)
from sizing.text import spelt
from sizing.token_law import LOGNORMAL
from sizing.workload import (
    LEAST_GOODPUT,
    METRICS,
    MOST_GOODPUT,
    MOST_REJECTED,
    OF_REQUESTS,
    PERCENTILES,
    ArrivalKind,
    Metric,
    Routing,
    ShareOfRequests,
    metric_name,
)
from ui import answers, link
from ui.scenario import OF_SERVER, PRESETS, Scenario
from ui.values import fill, fill_law, fill_limit, fill_sessions, fill_share, read, read_law, with_percentiles
from ui.visit import fill_view, let_go, number_kept, visit
from ui.words import UNIT, plain, sentence_case

state = st.session_state
T = TypeVar("T")
ROUTING_NAMES: dict[Routing, str] = {
    "random": "Random",
    "round_robin": "Round robin",
    "power_of_two": "Power of two choices",
    "least_outstanding": "Least outstanding requests",
}
ARRIVAL_NAMES: dict[ArrivalKind, str] = {
    "poisson": "Poisson (independent users)",
    "constant": "Constant gaps",
    "gamma": "Bursty (gamma)",
    "batch": "In groups",
}


def number_field(
    label: str, allowed: Range, key: str, help_: str, step: float | None = None, *, disabled: bool = False
) -> None:
    """A number input over a range, whole numbers where the value is one."""
    kind = type(state[key])
    number_kept(
        label,
        kind(allowed.low),
        kind(allowed.high),
        key,
        step=step or kind(1),
        format="%d" if kind is int else "%g",
        help=help_,
        disabled=disabled,
    )


def more() -> None:
    """Laws of lengths, routing, arrivals, shared prefix, costs, servers, and whether measured points count."""
    for side, name, _ in LENGTHS:
        _law(side, name)
    _choice("Routing", ROUTING_NAMES, "routing", ROUTING_HELP)
    _choice("Arrivals", ARRIVAL_NAMES, "arrivals", ARRIVALS_HELP)
    if state.arrivals == "gamma":
        number_field(
            "Burstiness (CV of the gaps)", ARRIVAL_CV, "arrivals_cv", "1 = Poisson, 2 = rather bursty.", step=0.1
        )
    if state.arrivals == "batch":
        number_field(
            "Requests per group", ARRIVAL_SIZE, "arrivals_size", "Sent at the same instant; groups arrive at random."
        )
    _admission()
    _prefix()
    _costs()
    low, high = int(OF_SERVER.low), int(OF_SERVER.high)
    usual = "Usual for this GPU"
    number_kept("GPUs per server", low, high, "gpus_per_server", optional=True, help=SERVER_HELP, placeholder=usual)
    st.toggle("Use measured points from the store", key="use_points", help=POINTS_HELP, persist_state="session")


def _admission() -> None:
    """How long requests may wait, and how many may be turned away for it."""
    left, right = st.columns(2)
    with left:
        _optional("Queue limit (requests)", 0, int(QUEUE.high), "queue_limit", QUEUE_HELP)
    with right:
        low, high = float(TIMEOUT_S.low), float(TIMEOUT_S.high)
        _optional("Queue timeout (s)", low, high, "queue_timeout_s", TIMEOUT_HELP, format="%g")
    _share("rejected", "Rejected (%)", 0.01, 100 * MOST_REJECTED, REJECTED_HELP)


def _optional(label: str, low: float, high: float, key: str, help_: str, **looks: str) -> None:
    number_kept(label, low, high, key, optional=True, help=help_, placeholder="None", **looks)


QUEUE_HELP = "A replica with this many requests waiting rejects further ones. Empty: no limit."
TIMEOUT_HELP = "Requests that have waited this long are dropped. Empty: no timeout."
REJECTED_HELP = (
    "The largest share of requests that may be rejected or time out. Needs a queue limit or timeout; the answer then "
    "rests on simulation alone, because the formula does not cover either."
)


def _choice(label: str, names: Mapping[T, str], key: str, help_: str) -> None:
    st.selectbox(label, [*names], format_func=names.__getitem__, key=key, help=help_, persist_state="session")


def _law(side: str, name: str) -> None:
    """The law of a length: its kind, and its parameters in one line of text."""
    key = f"{side}_law"
    label = f"{name} length distribution"
    st.selectbox(
        label,
        [*LAW_NAMES],
        format_func=LAW_NAMES.__getitem__,
        key=key,
        help=LAW_HELP,
        on_change=_usual_law,
        args=(side,),
        persist_state="session",
    )
    if state[key] == LOGNORMAL:
        return
    st.text_input(
        f"{name} lengths (tokens)",
        key=f"{key}_text",
        max_chars=link.LONGEST_LAW,
        help=LAW_TEXT_HELP,
        persist_state="session",
    )
    try:
        read_law(side)
    except ScenarioError as error:
        st.error(f"{plain(sentence_case(str(error)))}. Until then the lengths count as lognormal.")


def _usual_law(side: str) -> None:
    """A text to start from, about the mean that the form has."""
    mean = int(state[side])
    low, high = max(1, mean // 2), mean + mean // 2
    state[f"{side}_law_text"] = {
        "uniform": f"{low}-{high}",
        "points": f"{low}@0.8,{max(3 * mean, low + 1)}@0.2",
        "histogram": f"1-{mean}@60,{mean + 1}-{3 * mean}@30,{3 * mean + 1}-{6 * mean}@10",
    }.get(state[f"{side}_law"], "")


LAW_NAMES = {
    LOGNORMAL: "Lognormal",
    "uniform": "Uniform",
    "points": "A few fixed lengths",
    "histogram": "Histogram",
}
LAW_HELP = "Lognormal uses the mean and variation above; the others imply both."
LAW_TEXT_HELP = (
    "Uniform: 500-3500. A few fixed lengths, with the share of each: 200@0.8,4000@0.2. Histogram: ranges with counts, "
    "1-500@10,501-2000@3; within a range all lengths are equally likely."
)


def _prefix() -> None:
    left, right = st.columns(2)
    share, hit = "Shared prefix (%)", "Found in cache (%)"
    with left:
        _percent(share, "prefix_share", PREFIX_HELP)
    with right:
        _percent(hit, "prefix_hit", HIT_HELP)


def _percent(label: str, key: str, help_: str, most: float = 100.0) -> None:
    number_kept(label, 0.0, most, key, step=5.0, format="%g", help=help_)


PREFIX_HELP = (
    "Share of the mean prompt taken up by the system prompt or document that all requests start with. 0 = none."
)
HIT_HELP = "How often the shared prefix is in a replica's KV cache and need not be computed again."


def _costs() -> None:
    left, right = st.columns(2)
    with left:
        _optional("Price (per GPU-hour)", float(PRICE.low), float(PRICE.high), "price", PRICE_HELP, format="%g")
    with right:
        number_field("Peak over mean", PEAK_FACTOR, "peak_factor", PEAK_HELP, step=0.5)


PEAK_HELP = "Peak load over the day's mean load; used only for costs per token and request. Over a day has its own."
SERVER_HELP = "Used to show the number of servers beside the GPUs. Empty: this GPU's usual server."
ROUTING_HELP = "How the load balancer picks a replica. Least outstanding requests needs the fewest GPUs."
ARRIVALS_HELP = "How requests are distributed over time at the peak."
PRICE_HELP = "Any currency; adds the cost per hour to the answer. Empty: no cost."
POINTS_HELP = "On: your measurements take precedence over estimates. Off: estimates only."
TPS = (1, 2, 4, 8)
METRIC_HELP: dict[Metric, str] = {
    "ttft": "Time to first token: from sending a request to its first output token.",
    "itl": "Inter-token latency: mean gap between a request's output tokens after the first.",
    "gap": "Gap between tokens: the time between two successive tokens of a request, over all gaps of all requests. "
    "ITL is the mean of a request's gaps, in which a long answer hides a stall; this limits single stalls.",
    "e2e": "End to end: from sending a request to its last output token.",
}


def open_link() -> None:
    """Fill the form from the URL: in a new session, and when the browser's back or forward button has brought a URL.

    At other times the URL may be older than the form: a field changed before the browser had our last URL, or it
    stopped the run that would write one. A run may stop between any two values; the next one fills in all of them.
    """
    url = st.query_params.to_dict()
    if visit().linked is None or (_went_back_or_forward() and url):
        visit().to_fill = url
    query: dict[str, str] | None = visit().to_fill
    if query is None:
        return
    scenario, problems = link.from_query(query)
    visit().link_problems = problems + link.repeated({key: len(st.query_params.get_all(key)) for key in query})
    visit().linked_gpus, visit().linked_data = link.answer_of(query), link.data_of(query)
    fill(scenario)
    fill_view(query)
    visit().linked = read()  # as the form holds it, its percentages rounded
    visit().to_fill = None


def _went_back_or_forward() -> bool:
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def draw() -> Scenario:
    """Draw the form in the sidebar and return what it holds."""
    with st.sidebar:
        _presets()
        _what()
        _load()
        _limits()
        left, right = st.columns(2)
        with left:
            _percent("Headroom (%)", "headroom", HEADROOM_HELP, HEADROOM.high * 100)
        with right:
            number_field("Spare replicas", SPARE, "spare", SPARE_HELP)
        with st.expander("More"):
            more()
    scenario = visit().scenario = read()
    if scenario != visit().linked:
        visit().link_problems = []
    return scenario


HEADROOM_HELP = (
    "Share of a replica's capacity kept free: at 20 %, it is planned at 80 % of the load at which the SLA first fails."
)
SPARE_HELP = "Idle replicas that stand by for a failure or an update, on top of those that carry the load."


def _presets() -> None:
    """Presets are actions, not a state: a pill springs back; bold marks the one that the form still matches."""
    scenario = read()
    st.pills(
        "Start from",
        list(PRESETS),
        format_func=lambda name: f"**{name}**" if PRESETS[name].matches(scenario) else name,
        key="preset",
        on_change=_use_preset,
        help=PRESETS_HELP,
    )


PRESETS_HELP = "Fills in typical lengths and limits for a use case; change any of them afterwards.\n\n" + "\n".join(
    f"- **{name}**: {preset.source}." for name, preset in PRESETS.items()
)


def _use_preset() -> None:
    preset, state.preset = PRESETS[state.preset], None
    for name in ("isl", "isl_cv", "osl", "osl_cv"):
        state[name] = getattr(preset, name)
    for side in ("isl", "osl"):
        fill_law(side, getattr(preset, f"{side}_law"))
    for metric in METRICS:
        fill_limit(metric, getattr(preset, metric))
    fill_share("goodput", None)
    if preset.sessions:
        fill_sessions(preset.sessions)


def _what() -> None:
    for model in visit().own_models.values():
        catalog.keep(model)
    models = _with(answers.model_names(), [*visit().own_models, state.model])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox("Model", models, key="model", help=MODEL_HELP, persist_state="session")
        with st.popover("Custom", help="A model of your own, from its config.json."):
            _upload()
    if state.model in visit().own_models:
        st.caption(
            ":material/upload_file: Your own model: this server keeps it until it restarts, the link cannot carry it."
        )
    gpus = _with(answers.gpu_names(), state.gpus)
    _choices("GPUs", gpus, "gpus", "Measured GPUs", GPUS_HELP)
    left, right = st.columns(2)
    precisions = _with(answers.precision_names(state.model, tuple(state.gpus)), state.precisions)
    with left:
        _choices("Precision", precisions, "precisions", "Any", PRECISION_HELP)
    with right:
        _choices("TP (GPUs)", _with(TPS, state.tps), "tps", "Any", TP_HELP)
    left, right = st.columns(2)
    with left:
        engines = _with(answers.engine_names(state.model), state.engines)
        _choices("Engine", engines, "engines", "Any", ENGINE_HELP)
    with right:
        known = answers.layout_names(state.model, tuple(state.gpus))
        _choices("Layout", _with(known, state.layouts), "layouts", "Any", LAYOUT_HELP)


def _upload() -> None:
    """Take the config.json of a model that the catalogue lacks."""
    key = f"config_{visit().configs}"  # a new uploader, an empty one, after each file
    most = MOST_BYTES // 2**20
    st.file_uploader("config.json", "json", key=key, max_upload_size=most, on_change=_take, args=(key,), help=OWN_HELP)
    if visit().config_refused:
        st.error(plain(visit().config_refused))


def _take(key: str) -> None:
    """Plan for the model of the file just uploaded, or say what is wrong with it; the file itself is let go of."""
    file, now = state[key], visit()
    if file is None:
        return
    now.configs, now.config_refused = now.configs + 1, ""
    try:
        found = own(parse(file.getvalue(), "config.json"))
    except CatalogueError as error:
        now.config_refused = f"{file.name} was not accepted: {error}"  # a file too large may have come since
    else:
        now.own_models[found.id] = found
        state.model, state.precisions = found.id, []
    let_go(file.file_id)


def _choices(label: str, options: Sequence[T], key: str, if_none: str, help_: str) -> None:
    st.multiselect(
        label,
        options,
        key=key,
        format_func=lambda option: spelt(str(option)),
        placeholder=if_none,
        help=help_,
        persist_state="session",
    )


MODEL_HELP = "Models in the catalogue and models you have measured."
OWN_HELP = (
    "The public configuration of a model that the list lacks, as Hugging Face has it. It is read for its sizes and "
    "kept by this server until it restarts: a link cannot carry it, and whoever opens one elsewhere or later has to "
    "upload the file again."
)
GPUS_HELP = "GPUs to compare; the answer names the one that needs the fewest. None chosen: those you have measured."
PRECISION_HELP = "Precisions to compare. None chosen: all that the model and GPU support."
ENGINE_HELP = (
    "Engines to compare: TensorRT-LLM, vLLM, SGLang, and those that were measured. None chosen: the measured "
    "one, else every engine with kernel timings, side by side."
)
LAYOUT_HELP = (
    "Other ways in which the GPUs of a replica share the model: pipeline parallelism (PP), data-parallel attention "
    "(DP), expert parallelism (EP). Neither a layout nor a TP chosen: all those that make sense."
)
TP_HELP = "Tensor parallelism: the number of GPUs over which a replica spreads the model. None chosen: any layout."


def _with(known: Sequence[T], chosen: Sequence[T]) -> list[T]:
    """The known names and, behind them, those that only the link knows: an unknown name is shown, not guessed at."""
    return [*known, *(name for name in chosen if name not in known)]


def _load() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        number_field("Peak load (requests/s)", RATE, "rate_per_s", RATE_HELP)
        with st.popover("From users", help="Compute the load from the number of users."):
            _users()
    held = read()
    for key, name, help_ in LENGTHS:
        implied = getattr(held, f"{key}_law") is not None
        if implied:
            state[key], state[f"{key}_cv"] = getattr(held, key), float(f"{getattr(held, f'{key}_cv'):.3g}")
        left, right = st.columns(2)
        with left:
            number_field(f"{name} (tokens)", TOKENS, key, help_, disabled=implied)
        with right:
            number_field(f"{name} variation (CV)", VARIATION, f"{key}_cv", VARIATION_HELP, step=0.1, disabled=implied)


LENGTHS = (
    ("isl", "Input", "Mean tokens of a prompt, template and context included."),
    ("osl", "Output", "Mean tokens of an answer, reasoning included."),
)
RATE_HELP = "Requests per second that the whole fleet must carry at the busiest time."
VARIATION_HELP = (
    "Standard deviation divided by mean of the lengths: 0 = all equal, 1 = typical of chat. One request in "
    "20 is then longer than 1.6 (CV 0.3), 2.1 (CV 0.6) or 2.8 times (CV 1) the mean. Lengths are lognormal unless "
    "another distribution is chosen under More."
)


def _users() -> None:
    users = st.number_input(
        "Active users at peak",
        1,
        100_000_000,
        400,
        key="users",
        help="Users with a session open.",
        persist_state="session",
    )
    each = st.number_input(
        "Requests per user per minute",
        0.001,
        1000.0,
        2.0,
        format="%g",
        key="per_user",
        help="Mean over active users.",
        persist_state="session",
    )
    rate_per_s = min(max(round(users * each / 60, 6), RATE.low), RATE.high)
    text = per_second(rate_per_s)
    st.caption(f"{users:,} users × {each:g} requests per minute ÷ 60 = {text}")
    st.button(f"Use {text}", on_click=lambda: state.update(rate_per_s=rate_per_s))


LABEL_PX, VALUE_PX = 124, 90
"""Widths in the rows of limits, of which all then line up; a percentile takes what is left of its row."""


def _limits() -> None:
    for metric in METRICS:
        _limit(metric)
    _share("goodput", "Goodput (%)", LEAST_GOODPUT, MOST_GOODPUT, GOODPUT_HELP)


def _limit(metric: Metric) -> None:
    name, (unit, per_s) = sentence_case(metric_name(metric)), UNIT[metric]
    with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="xsmall"):
        on = st.toggle(
            f"{name} ({unit})",
            key=f"{metric}_on",
            width=LABEL_PX,
            help=METRIC_HELP[metric] + LIMIT_HELP.format(of="gaps" if metric == "gap" else "requests"),
            persist_state="session",
        )
        number_kept(
            f"{name} limit ({unit})",
            round(LIMIT_S.low * per_s, 9),  # 1e-9 * 1000 has 17 digits, which its error would show
            float(LIMIT_S.high * per_s),
            f"{metric}_limit",
            format="%g",
            disabled=not on,
            width=VALUE_PX,
            label_visibility="collapsed",
        )
        st.selectbox(
            f"{name} percentile",
            [*PERCENTILES, EACH] if state.goodput_on and metric in OF_REQUESTS else PERCENTILES,
            format_func=lambda percentile: f"p{percentile}" if percentile else "each",
            key=f"{metric}_percentile",
            disabled=not on,
            label_visibility="collapsed",
            persist_state="session",
        )


LIMIT_HELP = " The limit, and the percentile that must meet it: p95 = 95 of 100 {of}."
EACH = 0
"""In place of a percentile: the limit counts for goodput alone."""
GOODPUT_HELP = (
    "The smallest share of requests that must meet the limits on TTFT, ITL and E2E all at once. A limit whose "
    "percentile is *each* counts for goodput alone; the others must hold by themselves too. The gap limit takes no "
    "part."
)


def _share(share: ShareOfRequests, label: str, low: float, high: float, help_: str) -> None:
    """The row of a limit in per cent of the requests."""
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        on = st.toggle(
            label,
            key=f"{share}_on",
            width=LABEL_PX,
            help=help_,
            on_change=with_percentiles,
            persist_state="session",
        )
        number_kept(
            f"{label} limit",
            low,
            high,
            f"{share}_percent",
            step=0.1,
            format="%g",
            disabled=not on,
            width=VALUE_PX,
            label_visibility="collapsed",
        )
