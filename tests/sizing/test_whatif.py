"""What-ifs: each change moves times, memory and fleets the way it must, and nothing where it asks for what is there."""

from __future__ import annotations

import dataclasses

import pytest

from sizing.analyses.whatif import (
    KINDS,
    AtPrecision,
    AtTp,
    BatchLimit,
    ChunkedPrefill,
    KvReuse,
    Lora,
    Medusa,
    ReDrafter,
    Setup,
    Sparse,
    Speculative,
    WhatIf,
    what_if,
)
from sizing.edge import BY_FORMULA, BY_SIMULATION
from sizing.plans import Candidate, Fleet
from sizing.question import Question
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.sizing.whatif_cases import QUESTION, SLA, after

# Limit cases: no change, same answer.


def same(candidate: Candidate) -> list[WhatIf]:
    batching = candidate.replica.batching
    return [
        AtPrecision("bf16"),
        AtTp(2),
        Sparse(1),
        Speculative(0),
        Medusa(0),
        ReDrafter(0),
        Lora(8, 0),
        Lora(0, 64),
        KvReuse(1000, 0),
        KvReuse(0, 1),
        ChunkedPrefill(batching.token_budget),
        BatchLimit(batching.max_batch_size),
    ]


def test_no_change_gives_the_same_answer(bf16: Candidate) -> None:
    """The same candidate with the same basis and band, and hence the same fleet, object for object."""
    found = what_if(QUESTION, bf16, same(bf16), BY_FORMULA)
    assert found.setup.candidate == bf16
    assert found.setup.question == QUESTION
    assert found.after is found.before
    assert all("nothing changes" in line for line in found.assumptions)
    assert len(found.assumptions) == len(same(bf16))


# What every change does.


CHANGES = [
    AtPrecision("fp8"),
    AtTp(4),
    Sparse(1.3),
    Speculative(4, 0.7),
    Medusa(4, 0.6),
    ReDrafter(4, 0.7),
    Lora(8, 16),
    KvReuse(1000, 0.8),
    ChunkedPrefill(2048),
    ChunkedPrefill(0),
    BatchLimit(32),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_every_change_says_so(change: WhatIf, bf16: Candidate) -> None:
    """Basis, a wider band, no laws of the fit before it, and at least one assumption; every kind is tried here."""
    fitted = dataclasses.replace(bf16, basis="fitted", variants=((bf16.replica, bf16.replica),))
    changed = after(change, fitted)
    assert changed.candidate.basis == "what-if"
    assert changed.candidate.relative_sigma > bf16.relative_sigma
    assert changed.candidate.variants == ()
    assert len(changed.assumptions) >= 2
    assert "band is widened" in changed.assumptions[-1]
    assert {type(change) for change in CHANGES} == set(KINDS.values())


def test_changes_add_up(bf16: Candidate) -> None:
    """Two changes: both sets of assumptions, and errors that add in quadrature."""
    one, two = after(BatchLimit(32), bf16), after(Lora(2, 8), bf16)
    both = Lora(2, 8).apply(one)
    assert both.assumptions == one.assumptions + two.assumptions
    base = bf16.relative_sigma**2
    added = one.candidate.relative_sigma**2 + two.candidate.relative_sigma**2 - 2 * base
    assert both.candidate.relative_sigma**2 == pytest.approx(base + added)


@pytest.mark.parametrize("resized", [AtPrecision("fp8"), AtTp(4)])
@pytest.mark.parametrize(
    "other",
    [each for each in CHANGES if not isinstance(each, (AtPrecision, AtTp))],
    ids=lambda each: type(each).__name__,
)
def test_another_precision_or_tp_is_the_same_before_and_after_what_else_changes(
    resized: WhatIf, other: WhatIf, bf16: Candidate
) -> None:
    """A draft, adapters and pruned weights are those of the engine that there will be, in whatever order one asks."""
    for changes in ([resized, other], [other, resized]):
        setup = what_if(QUESTION, bf16, changes, BY_FORMULA).setup
        assert setup == other.apply(resized.apply(Setup(bf16, QUESTION)))


# Through fleets: GPUs and what a replica carries.


def fleets(question: Question, candidate: Candidate, *changes: WhatIf) -> tuple[Fleet, Fleet]:
    """Before and after, by formula."""
    found = what_if(question, candidate, changes, BY_FORMULA)
    assert isinstance(found.before, Fleet)
    assert isinstance(found.after, Fleet)
    return found.before, found.after


MEMORY_BOUND = dataclasses.replace(QUESTION, workload=Workload(Lengths(300, 600), 30), sla=Sla(SLA.itl))


def test_drafts_that_are_never_right_are_no_better(bf16: Candidate) -> None:
    """Acceptance 0: a token a step, at the draft's cost; with a free draft still the arithmetic of the checks."""
    for draft_size in (0.05, 0.0):
        before, after = fleets(MEMORY_BOUND, bf16, Speculative(4, 0.0, draft_size))
        assert after.capacity_per_s < before.capacity_per_s
        assert after.gpus >= before.gpus


def test_good_small_drafts_pay_where_reading_the_weights_binds(bf16: Candidate) -> None:
    """Few sequences at a tight ITL: with acceptance .9 a step of hardly more time yields 4.1 tokens."""
    tight = dataclasses.replace(MEMORY_BOUND, sla=Sla(Limit.parse("itl", "p95:15ms")))
    before, after = fleets(tight, bf16, Speculative(4, 0.9, 0.01))
    assert after.gpus < before.gpus
    assert after.capacity_per_s > before.capacity_per_s


def test_prompts_found_in_the_cache_need_fewer_gpus(bf16: Candidate) -> None:
    """The more hits the fewer GPUs; the changed workload reaches the simulation too."""
    tight = dataclasses.replace(QUESTION, sla=Sla(Limit.parse("itl", "p95:15ms")))
    found = [fleets(tight, bf16, KvReuse(1500, hits))[1] for hits in (0.0, 0.5, 0.9)]
    gpus = [fleet.gpus for fleet in found]
    assert gpus[2] <= gpus[1] < gpus[0]
    assert found[2].capacity_per_s > found[1].capacity_per_s > found[0].capacity_per_s
    simulated = what_if(tight, bf16, [KvReuse(1500, 0.9)], BY_SIMULATION)
    assert isinstance(simulated.after, Fleet)
    assert isinstance(simulated.before, Fleet)
    assert simulated.after.verified
    assert simulated.after.gpus < simulated.before.gpus
    assert simulated.after.gpus == pytest.approx(gpus[2], abs=2)


def test_adapters_never_need_fewer_gpus_and_sparsity_never_more(bf16: Candidate) -> None:
    before, adapted = fleets(QUESTION, bf16, Lora(8, 16))
    assert adapted.capacity_per_s < before.capacity_per_s
    before, sparse = fleets(QUESTION, bf16, Sparse(1.3))
    assert sparse.capacity_per_s > before.capacity_per_s


def test_whole_prompts_carry_less_at_a_tight_itl(bf16: Candidate) -> None:
    """With prompts of 8,000 tokens one whole prompt stalls decodes for longer than chunks of 1,024 do, where a chunk
    costs nothing beside its tokens."""
    law = bf16.replica.law.with_values(prefill_s=0.0)
    free = dataclasses.replace(bf16, replica=dataclasses.replace(bf16.replica, law=law))
    long = dataclasses.replace(
        QUESTION, workload=Workload(Lengths(8000, 64), 5), sla=Sla(Limit.parse("itl", "p95:80ms"))
    )
    chunked = fleets(long, free, ChunkedPrefill(1024))[1]
    whole = fleets(long, free, ChunkedPrefill(0))[1]
    assert whole.capacity_per_s < chunked.capacity_per_s
