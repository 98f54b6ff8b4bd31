"""What-ifs that cannot be, and the command line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from sizing.analyses.whatif import (
    AtPrecision,
    AtTp,
    BatchLimit,
    ChunkedPrefill,
    KvReuse,
    Lora,
    Medusa,
    Sheet,
    Sparse,
    Speculative,
    WhatIf,
    parse_change,
    sheet_of,
)
from sizing.cli.whatif import whatif_command
from sizing.errors import ScenarioError
from sizing.estimate import estimate
from sizing.plans import Candidate, NoFeasiblePlan
from tests.sizing.test_cli import run
from tests.sizing.whatif_cases import LENGTHS, QWEN, after

# Faults.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (AtPrecision("int3"), "bf16, fp8"),
        (AtTp(3), "64 attention heads"),
        (AtTp(0), "64 attention heads"),
        (Sparse(2.5), "from 1 to 2"),
        (Speculative(4, 1.2), "acceptance"),
        (Speculative(4, 0.5, 1.0), "draft_size"),
        (Speculative(-1, 0.5), "draft_tokens"),
        (Medusa(4, 0.6, 2), "tree"),
        (Lora(-1, 8), "adapters and rank"),
        (KvReuse(2000, 1), "fewer than the prompt"),
        (KvReuse(100, 2), "hit_rate"),
        (ChunkedPrefill(-1), "chunk must be 0"),
        (BatchLimit(0), "max_batch_size"),
    ],
)
def test_impossible_changes_are_refused(change: WhatIf, text: str, bf16: Candidate) -> None:
    with pytest.raises(ScenarioError, match=text) as caught:
        after(change, bf16)
    assert "\n" not in str(caught.value)


def test_models_outside_the_catalogue_have_no_sizes(bf16: Candidate) -> None:
    own = dataclasses.replace(bf16, model="our/own")
    with pytest.raises(ScenarioError, match="sizes from the catalogue"):
        after(Sparse(), own)
    assert after(BatchLimit(8), own).candidate.replica.batching.max_batch_size == 8


# The command line.


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("precision=fp8", AtPrecision("fp8")),
        ("precision:to=fp8", AtPrecision("fp8")),
        ("speculative:draft_tokens=4,acceptance=0.7", Speculative(4, 0.7)),
        ("medusa", Medusa()),
        (" lora:rank=8, adapters=3", Lora(3, 8)),
        ("chunked_prefill=off", ChunkedPrefill(0)),
        ("kv_reuse:tokens=500", KvReuse(500, 1.0)),
    ],
)
def test_changes_are_read(text: str, change: WhatIf) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("faster", "the changes are precision, tp, sparsity"),
        ("", "the changes are"),
        ("precision", "give to, for instance precision=fp8"),
        ("speculative:tokens=4", "there are draft_tokens, acceptance, draft_size"),
        ("tp=two", "to must be a whole number, got 'two'"),
        ("sparsity=fast", "speedup must be a number"),
    ],
)
def test_unreadable_changes_name_the_choices(text: str, why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        parse_change(text)


OPTIONS = f"--model {QWEN} --gpu h200_sxm --precision bf16 --tp 2 --isl 500 --osl 64 --rate 4 --itl p95:60ms".split()


def test_the_command_compares_and_prints_what_it_assumes() -> None:
    ran = CliRunner().invoke(whatif_command, ["--change", "precision=fp8", *OPTIONS, "--json"])
    assert ran.exit_code == 0, ran.output
    shown = json.loads(ran.output)
    assert shown["after"]["precision"] == "fp8"
    assert shown["after"]["basis"] == "what-if"
    assert shown["after"]["requests_per_s_per_gpu"] > shown["before"]["requests_per_s_per_gpu"]
    assert any("estimate asked for directly" in line for line in shown["assumptions"])
    pools = ["--disaggregated", "--ttft", "p95:1s"]
    printed = CliRunner().invoke(whatif_command, ["--change", "batch_limit=64", *OPTIONS, *pools])
    assert printed.exit_code == 0, printed.output
    assert "for 4 requests/s of Qwen/Qwen3-32B" in printed.output
    assert "Prefill: 4 GPUs" in printed.output
    assert "Verified by simulation" in printed.output
    assert "This assumes:" in printed.output
    assert "at most 64 sequences at once" in printed.output


def test_pools_that_find_prompts_in_their_cache_are_set_to_keep_it() -> None:
    asked = ["--change", "kv_reuse:tokens=400", *OPTIONS, "--ttft", "p95:1s", "--disaggregated", "--json"]
    told = json.loads(CliRunner().invoke(whatif_command, asked).output)
    pools = told["disaggregated"]
    for fleet, cached in ((told["before"], False), (told["after"], True), (pools["prefill"], True)):
        assert fleet["engine_settings"]["prefix_cache"] is cached


def test_the_command_reports_a_change_that_breaks_the_sla() -> None:
    tight = [*OPTIONS[:-1], "p95:7ms"]
    ran = CliRunner().invoke(whatif_command, ["--change", "lora:adapters=4,rank=64", *tight])
    assert isinstance(ran.exception, NoFeasiblePlan), ran.output


def test_json_of_a_change_that_breaks_the_sla_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["whatif", "--change", "chunked_prefill=1", *OPTIONS, "--ttft", "p95:1s", "--json"], capsys)
    told = json.loads(out)
    assert (code, told["feasible"], err.count("\n")) == (3, False, 1)
    assert told["before"]["gpus"] > 0 and told["rejected"]


def test_a_change_that_changes_nothing_is_said_to() -> None:
    ran = CliRunner().invoke(whatif_command, ["--change", "precision=bf16", *OPTIONS])
    assert ran.exit_code == 0 and "same" in ran.output and "+0 %" not in ran.output


def test_the_command_wants_a_change() -> None:
    ran = CliRunner().invoke(whatif_command, OPTIONS)
    assert isinstance(ran.exception, ScenarioError)
    assert "precision, tp, sparsity" in str(ran.exception)


def test_sheet_is_of_one_gpu() -> None:
    sheet = sheet_of(estimate(QWEN, "h200_sxm", 4, "bf16", LENGTHS))
    assert isinstance(sheet, Sheet)
    assert sheet.weight_bytes * 4 == pytest.approx(65.5e9, rel=0.01)
