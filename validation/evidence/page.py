"""docs/accuracy.md: the meaning of each claim, the source of its truth, what is not shown; then the table."""

from __future__ import annotations

from collections.abc import Sequence

from validation.evidence.table import ENOUGH, EvidenceRow, markdown, verdict

ABOUT = """# Accuracy

Written by `python -m sizing validate{options} --markdown docs/accuracy.md`, which anyone can run again: the cases
determine all random numbers, so the table is the same on any machine.

An error is (answer - truth) / truth; median, 90th percentile (p90) and worst are of its absolute value. *Optimistic*
means that the answer promises more requests/s, or shorter times, than the truth. A goal on shares is judged from
{enough} answers on.

## What is claimed

- **Systems with exact answers.** The simulator, reduced to queues with a known solution (M/M/c, M/G/1, processor
  sharing, batch service, fleets behind a router), against the formulas. At least 24 independent runs each: the
  difference must be below 4 standard errors, and the standard error below 1 %.
- **Largest rate.** The requests/s one replica carries under limits on TTFT and ITL, at p95 or p99. The answer is
  produced as in the product: eight closed-loop points with 2 % noise, at two lengths that mostly differ from those of
  the question; then the fit and the search. The truth is the engine itself, simulated at 400,000 requests per rate with
  its true law and other random numbers, with a plain bisection. Other rows use a curve of long prompts and one of long
  answers (which separate the cost of prompts from that of steps), the formula alone, the formula with the true law, and
  the rule of means (the load at which mean latencies meet the limits). The *rough engine* pads its batches, has a
  softer knee and 5 % jitter, none of which the law models.
- **Replicas.** 300 random scenarios: an engine within a factor of about two to five of real ones, lengths, limits,
  arrivals (Poisson, even, bursty), one of four routings, 1 to 60 times the load of a replica. The planner knows the
  law. Its count, without headroom and spares, is compared with the fewest replicas that meet the SLA in long
  simulations with fresh random numbers.
- **Band.** How often the 90 % band of a replica's rate contains the truth, over repeated calibrations, at two lengths
  that were not measured. Too often is also a failure: such a band is too wide to be useful.
- **Measured servers.** Where published measurements are available (`--data`), some of the rows calibrate and the others
  are predicted. Only those rows are used, plus, for GuideLLM, the day-zero law of model and GPU, which the planner's
  fit also uses as a prior. Only these rows of the table are about real machines.

## What is not shown

- Simulated engines follow the family of laws and schedulers that this planner assumes. Only the measured rows show that
  the law itself holds for an engine, and they cover few: vLLM, TensorRT-LLM and SGLang with dense models. Static
  batches are the only rows with steps timed one by one.
- There are no measured rows with random arrivals at a rate held below saturation for hours, and none with several
  replicas behind a router, prefix caches, speculative decoding or separate prefill servers. Those features are
  simulated, and compared with a naive second simulator in the tests.
- Calibration noise is 2 % and independent from point to point. A throttled or shared server is off by more, at all its
  points together.
- Day-zero estimates, which rest on no measurement, are outside this table; their band is wider, and they say so.

## The table

"""


def as_page(rows: Sequence[EvidenceRow], quick: bool) -> str:
    """The page as Markdown."""
    about = ABOUT.format(options=" --quick" if quick else "", enough=ENOUGH)
    return f"{about}{markdown(rows)}\n{verdict(rows)}\n"
