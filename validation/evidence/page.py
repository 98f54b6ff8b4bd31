"""The page of the documentation: what each claim is, how its truth is made, what is not shown; then the table."""

from __future__ import annotations

from collections.abc import Sequence

from validation.evidence.table import ENOUGH, EvidenceRow, markdown, verdict

ABOUT = """# Accuracy

Written by `python -m sizing validate{options} --markdown docs/accuracy.md`, which anyone can run again: all random
numbers follow from the cases, so the table comes out the same on any machine.

An error is (answer - truth) / truth; median, 90th percentile (p90) and worst are of its size. *Optimistic* is an answer
that promises more requests/s, or shorter times, than the truth. A goal on shares is judged from {enough} answers on.

## What is claimed

- **Systems with exact answers.** The simulator, reduced to queues that theory solves (M/M/c, M/G/1, processor sharing,
  batch service, fleets behind a router), against the formulas. 24 independent runs or more each: the gap must be below
  4 standard errors, and these below 1 %.
- **Largest rate.** The requests/s one replica carries under limits on TTFT and ITL, at p95 or p99. The question goes
  the product's way: eight closed-loop points with 2 % noise, at two lengths that are mostly not those asked for; the
  fit; the search. The truth: the engine itself, simulated at 400,000 requests a rate with its true law and other random
  numbers, and a plain bisection. Beside it the same from a curve of long prompts and one of long answers (which tell
  the cost of prompts from that of steps), by formula alone, by formula with the true law, and by the rule of means
  (the load at which mean latencies meet the limits). The *rough engine* pads its batches, has a softer knee and
  5 % of jitter, none of which the law knows.
- **Replicas.** 300 random scenarios: an engine within a factor of about two to five of real ones, lengths, limits,
  arrivals (Poisson, even, bursty), one of four routings, 1 to 60 times the load of a replica. The planner knows the
  law; its count, without headroom and spares, is held against the fewest replicas that meet the SLA in long simulations
  with fresh random numbers.
- **Band.** How often the 90 % band of a replica's rate holds the truth, over repeated calibrations, at two lengths that
  were not measured. Too often is a fault as well: such a band is too wide to be of use.
- **Measured servers.** Where published measurements are at hand (`--data`): part of the rows calibrates, the others are
  predicted. Nothing but those rows is used, and for GuideLLM's the day-zero law of model and GPU, on which the
  planner's fit leans too. These are the only rows of the table that speak of real machines.

## What is not shown

- Simulated engines follow the family of laws and schedulers that this planner assumes. That the law itself holds for
  an engine is shown by the measured rows only, and these are of few: vLLM, TensorRT-LLM and SGLang with dense models.
  Static batches are the only rows with steps timed one by one.
- No measured rows with random arrivals at a rate held below saturation for hours; none with several replicas behind a
  router, prefix caches, speculative decoding or separate prefill servers. Those features are simulated, and compared
  with a naive second simulator in the tests.
- Calibration noise is 2 % and independent from point to point. A server that was throttled, or shared, is off by more,
  and all its points together.
- Day-zero estimates, for which nothing was measured, are outside this table; their band is wider, and they say so.

## The table

"""


def as_page(rows: Sequence[EvidenceRow], quick: bool) -> str:
    """The page as Markdown."""
    about = ABOUT.format(options=" --quick" if quick else "", enough=ENOUGH)
    return f"{about}{markdown(rows)}\n{verdict(rows)}\n"
