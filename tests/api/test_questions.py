"""A JSON question is the command line's: the same options, the same answer, the same refusal, and no file is read."""

from __future__ import annotations

import csv
import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from api.questions import (
    COMMANDS,
    FIRST,
    INLINE,
    NOT_OFFERED,
    OF_TRACES,
    JsonQuestion,
    Refused,
    command,
    key_of,
    properties,
    refusal,
    schema,
)
from sizing.cli import cli
from sizing.cli.plan import show
from sizing.errors import SizingError, TimeLimitReached
from sizing.plans import NoFeasiblePlan
from sizing.points import read_points
from sizing.question import FIELDS
from tests.api.conftest import LIMIT_S, QUESTION
from tests.sizing.test_checkpoints import LLAMA_8B
from validation.speed.golden import ASKED, undated

ROOT = Path(__file__).parents[2]
POINTS = ROOT / "data/curves/reference-cpu.csv"
NUMBERS = {"integer": int, "number": float}


def as_question(arguments: str) -> tuple[str, dict[str, Any]]:
    """A command line as a command and its JSON question; files as what they hold."""
    name, *words = shlex.split(arguments.replace("--json", ""))
    body: dict[str, Any] = {}
    for option, value in pairwise([*words, "--"]):
        if not option.startswith("--"):
            continue
        key = option.removeprefix("--").replace("-", "_")
        form = properties(name)[key]
        kind = form.get("type")
        if key in INLINE:
            body[key] = (ROOT / value).read_text(encoding="utf-8")
        elif kind == "boolean":
            body[key] = True
        elif kind == "array":
            body.setdefault(key, []).append(value)
        else:
            body[key] = NUMBERS.get(str(kind), str)(value)
    return name, body


def computed(name: str, body: dict[str, Any]) -> bytes | Refused:
    assert refusal(name, body) is None
    return JsonQuestion.of(name, body).answer(LIMIT_S)


@pytest.mark.parametrize("extra", [{"points": "\ud800"}, {"max_tokens": 2**63}])
def test_what_cannot_be_represented_is_refused(extra: dict[str, Any]) -> None:
    body = {**QUESTION, **extra}
    assert isinstance(refusal("plan", body) or JsonQuestion.of("plan", body).answer(LIMIT_S), Refused)


def test_the_question_that_warms_workers_up_has_an_answer() -> None:
    assert isinstance(JsonQuestion("plan", json.dumps(FIRST)).answer(LIMIT_S), bytes)


@pytest.mark.parametrize("asked", ["plan 5", "plan 18", "plan 19", "fit whole", "predict", "simulate", "whatif"])
def test_the_answer_is_what_the_command_prints(asked: str) -> None:
    is_the_commands(asked)


@pytest.mark.long
@pytest.mark.parametrize("asked", ["plan 1", "plan 9", "plan 11", "plan 16", "capacity", "simulate static"])
def test_dearer_questions_have_the_commands_answers(asked: str) -> None:
    is_the_commands(asked)


def is_the_commands(asked: str) -> None:
    """The answer to a golden question equals what the command prints, to the last digit."""
    name, body = as_question(ASKED[asked])
    answer = computed(name, body)
    assert isinstance(answer, bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        printed = CliRunner().invoke(cli, shlex.split(ASKED[asked]))
        if isinstance(printed.exception, NoFeasiblePlan):
            refused = printed.exception
            printed = CliRunner().invoke(click.Command("show", callback=lambda: show(refused, json_=True)))
    assert undated(answer) == undated(printed.output.encode())


def test_a_change_that_no_fleet_carries_is_told_beside_the_plan_without_it() -> None:
    small_chunks = {"precision": "bf16", "tp": "2", "itl": "p95:30ms", "change": ["chunked_prefill=16"]}
    answer = computed("whatif", {**QUESTION, **small_chunks})
    assert isinstance(answer, bytes)
    told = json.loads(answer)
    assert told["feasible"] is False and told["rejected"] and told["before"]["gpus"] > 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_key_or_left_out_on_purpose(name: str) -> None:
    options = [each for each in command(name).params if isinstance(each, click.Option)]
    left_out = {key_of(each) for each in options} - properties(name).keys()
    assert left_out <= {*NOT_OFFERED, *(OF_TRACES if name == "plan" else ())}
    assert {"json_"} <= left_out
    for key, form in properties(name).items():
        bounds = FIELDS[key].range if key in FIELDS else None
        if bounds is not None and form.get("type") in NUMBERS:
            assert (form["minimum"], form["maximum"]) == (bounds.low, bounds.high)


def test_sessions_may_be_without_a_prefix_cache() -> None:
    shape = {"turns": 6, "first_tokens": 800, "user_tokens": 80, "output_tokens": 200}
    body = {"weights": "4.8ms", "sessions_per_s": 0.5, "requests": 2000, **shape}
    answers = [computed("sessions", body | {"prefix_cache": cached}) for cached in (True, False)]
    hit_rates = [json.loads(answer)["hit_rate"] for answer in answers if isinstance(answer, bytes)]
    assert hit_rates[0] > 0 and hit_rates[1:] == [0]
    assert answers[0] == computed("sessions", body)
    assert properties("sessions")["prefix_cache"]["default"] is True


def test_a_price_for_all_gpus_and_one_tp_may_be_numbers() -> None:
    asked = [dict(QUESTION) | {"price": number, "tp": number} for number in (2, "2")]
    assert not any(refusal("plan", each) for each in asked)
    answers = [JsonQuestion.of("plan", each).answer(LIMIT_S) for each in asked]
    costs = [json.loads(answer)["cost_per_hour"] for answer in answers if isinstance(answer, bytes)]
    assert len(costs) == 2 and costs[0] == costs[1] > 0


def test_points_as_rows_are_the_table() -> None:
    with POINTS.open(encoding="utf-8", newline="") as table:
        rows = [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(table)]
    asked = {"isl": 64, "osl": 32, "rate": 12}
    as_text = computed("predict", asked | {"points": POINTS.read_text(encoding="utf-8")})
    assert computed("predict", asked | {"points": rows}) == as_text
    assert len(rows) == len(read_points(POINTS))


OF_POINTS = {"points": POINTS.read_text(encoding="utf-8"), "isl": 64, "osl": 32}


def test_points_that_meet_the_sla_with_no_fleet_are_answered_without_a_count() -> None:
    answer = computed("plan", OF_POINTS | {"model": "reference-512x4", "rate": 20, "itl": "p95:1us"})
    assert isinstance(answer, bytes)
    told = json.loads(answer)
    assert told["feasible"] is False and "gpus" not in told
    assert [each["kind"] for each in told["rejected"]] == ["sla"]


def test_a_question_with_points_that_takes_too_long_says_so_to_its_lane() -> None:
    with pytest.raises(TimeLimitReached):
        JsonQuestion.of("predict", OF_POINTS | {"rate": 5}).answer(1e-6)


OWN = LLAMA_8B | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
OF_OWN = {"isl": 500, "osl": 100, "rate": 5, "gpu": "h100_sxm", "e2e": "p95:10s"}


def test_a_model_of_ones_own_is_its_config() -> None:
    answer = computed("plan", OF_OWN | {"tp": "1", "config": OWN})
    assert isinstance(answer, bytes) and json.loads(answer)["gpus"] >= 1


def test_a_name_stands_for_the_config_of_its_own_question() -> None:
    """Whoever asked before with another model under the same name, and with the same points."""
    large = OWN | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    point = {"model": "foo", "gpu": "h100_sxm", "precision": "fp8", "tp": 2, "isl": 500, "osl": 100}
    point |= {"load_kind": "concurrency", "load_value": 8, "requests_per_s": 2.0, "engine": "vllm"}
    body = OF_OWN | {"rate": 20, "precision": "fp8", "tp": "2", "model": "foo", "points": [point]}

    def gpus(config: dict[str, Any]) -> int:
        answer = computed("plan", body | {"config": config})
        assert isinstance(answer, bytes)
        return int(json.loads(answer)["gpus"])

    alone, after = gpus(large), (gpus(OWN), gpus(large))
    assert after[1] == alone != after[0]
    unknown = computed("plan", OF_OWN | {"model": "foo"})
    assert isinstance(unknown, Refused) and "unknown model 'foo'" in unknown.line


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rate": -1}, "rate: -1 is less than the minimum"),
        ({"isl": "many"}, "isl: 'many' is not of type 'number'"),
        ({"isl_cw": 1}, "isl_cw"),
        ({"model": "/etc"}, "cannot name a file"),
        ({"model": "./Qwen"}, "cannot name a file"),
        ({"model": "a/b/config.json"}, "cannot name a file"),
        ({"isl_law": "histogram:secret.csv"}, "cannot name a file"),
        ({"workload": ["a:isl_law=Histogram:x.CSV,osl=1,rate=1"]}, "cannot name a file"),
        ({"time_limit": 1e9}, "time_limit"),
        ({"trace": "/etc/passwd"}, "trace"),
        ({"points": []}, "points"),
        ({"points": [{"column": 1}]}, "points"),
        ({"model": "\ud800"}, "surrogate"),
    ],
)
def test_what_is_no_question_is_refused_in_one_line(changed: dict[str, Any], said: str) -> None:
    wrong = refusal("plan", QUESTION | changed)
    assert wrong is not None and said in wrong.line and "\n" not in wrong.line and len(wrong.line) < 300


@pytest.mark.parametrize("body", [None, [], "plan", 1, True])
def test_a_question_is_an_object(body: object) -> None:
    wrong = refusal("plan", body)
    assert wrong is not None and "object" in wrong.line


@given(some.sampled_from(["model", "gpu", "precision", "engine", "layout", "ttft", "arrivals", "price"]), some.text())
def test_no_text_is_taken_for_an_option_or_a_file(key: str, text: str) -> None:
    body = QUESTION | {key: text}
    if refusal("plan", body) is None:
        answer = JsonQuestion.of("plan", body).answer(LIMIT_S)
        assert isinstance(answer, Refused) or json.loads(answer).keys() & {"gpus", "feasible"}


def test_a_wrong_question_has_the_commands_own_line() -> None:
    body = QUESTION | {"gpu": "h1000"}
    options = [f"--{key}={value}" for key, value in body.items()]
    with pytest.raises(SizingError) as raised:
        cli.main(["plan", *options, "--json"], standalone_mode=False)
    assert computed("plan", body) == Refused("question", str(raised.value))


def test_a_wrong_table_is_named_without_the_servers_folders() -> None:
    broken = computed("fit", {"points": "model,isl\nx,1\n"})
    assert isinstance(broken, Refused) and broken.line.startswith("points.csv")


def test_the_order_of_keys_is_no_other_question() -> None:
    turned = dict(reversed(list(QUESTION.items())))
    assert JsonQuestion.of("plan", QUESTION) == JsonQuestion.of("plan", turned)


@pytest.mark.parametrize("name", COMMANDS)
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(dict(schema(name)))
