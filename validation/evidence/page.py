"""docs/accuracy.md: the meaning of each claim, the source of its truth, what is not shown; then the table."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.report.build import cells as line_cells
from validation.evidence.table import ENOUGH, HEADER, EvidenceRow, cells, markdown, verdict

ABOUT = """# Accuracy

How close are the planner's answers to the truth? [The table](#the-table) gives the errors, claim by claim. The sections
before it say what each prediction was given, what it is compared with, and which choices in the product were made with
such data in view: those rows flatter it.

An error is (answer - truth) / truth; median, 90th percentile (p90) and worst are of its absolute value. *Optimistic*
means that the answer promises more requests/s, or shorter times, than the truth. A goal on shares is judged only with
{enough} answers or more.

`python -m sizing validate{options} --markdown docs/accuracy.md` writes this page, and anyone can run it again
(`--only CLAIM` renews the rows of one claim). The cases determine all random numbers, so the table is the same on any
machine, apart from some tenths of a per cent where a processor rounds differently and a fit takes another path.

## What is claimed

Real servers come first. Some of a server's measurements calibrate the product's own fit, which predicts the others.
Published measurements are read from `--data`; the sample of closed loops comes with aiconfigurator-core. From *systems
with exact answers* on, the truth is theory or a simulated engine.

### Dense servers and mixtures of experts (MoE)

Closed loops of vLLM, SGLang and TensorRT-LLM on H100, H200 and Blackwell GPUs, with the mean TTFT and ITL of whole
runs. Requests/s follow by Little's law.

- *Other loads*: four levels of one pair of lengths are fitted, the levels between them predicted.
- *Other lengths*: four levels of each other pair of lengths of a server are fitted, all levels of the pair left out
  predicted.
- *One mix, other prompts*: four levels of a single pair of lengths are fitted. All levels of another pair of the server
  are predicted, with prompts four times as long or a quarter as long.
- *More users*: the two highest levels are predicted from those below.

Where the fit knows both model and GPU, their day-zero law is its prior. It is told neither how the users started nor
how the engine forms its batches.

The note gives median and p90 of straight lines in logarithms through the same fitted levels: interpolated, of the
nearest lengths, of the mix that was fitted, or extrapolated. These rows contain only means, so the rule of means is not
compared. Rows with faults of their own are left out; the first row counts them. Rows of InferenceX, most of which are
not marked as such, are read with the lengths that its client draws.

*Chosen with such data.* The series (for other lengths and prompts, the servers) are split into halves by a hash of
their names. One half decided what the fit weighs and allows for, and how wide bands are; only the other is in the
table. The choices were:

- What fitted levels show beyond the law is carried over to other levels and, by nearness, to other lengths.
  Bands of requests/s and ITL there are as wide as each fitted pair of lengths, left out in turn, surprises the rest.
- The straight line makes up a fifth of an answer between levels.
- Beyond the most users, and wherever a single level was measured, the part of a mean TTFT that the engine does not
  explain grows with the power 2/3 of users times prompt tokens.
- How far to trust a mean TTFT that nobody judged steady, and the timings of a token's arithmetic.
- What attention costs where timings do not show it.
- That fits of MoE models lean on kernels for the fixed cost of a prompt as they are, without a factor. (That reading
  and arithmetic add up in MoE models is what kernel timings show.)
- What a batching policy, or chunks of prompts, other than the engine's default must gain to be believed.
- How wide bands of TTFT are at other lengths, of dense and of MoE models.

*Bands* are 90 % bands of the same predictions. Those of mean TTFT of dense servers at other lengths hold nearly all
figures here. In the half used for the choices, which has the servers of Llama-3.1-8B, they hold 84 % of 628; of all
figures, 88 %.

### One level

The same series, each fitted to its middle level, which scales the day-zero law of model and GPU; the note has fits to
the lowest and the highest. The rest of the series (*other loads*) and the nearest other lengths of the same server
(*other lengths*) are predicted. For comparison, the row has the day-zero estimate alone, and the fit of four levels at
levels that it has not seen.

Three things were chosen on the half that is not in the table: how far estimates err together, what a long TTFT says of
an MoE model's prompts, and how the burst of the start, which the measured TTFT includes, is carried over to other users
and lengths. Requests/s follow from TTFT and ITL by Little's law.

### Estimates

The same closed loops, predicted from kernel timings before anything of the server was measured. The overhead of servers
beyond their kernels consists of factors, the *effects*: by kind of model, engine, generation of the GPU, precision,
release and model (see `sizing/estimate/silicon.py`). They are fitted to all rows but those of a whole group: each pair
of model and GPU, each model, each GPU. Models of one shape are one model.

The law is that of the row's own engine, with experts split as in the row; the first row counts those without such a
law. The loop begins with all users together and counts every request. Bands follow from the errors in the other groups
of the class. For comparison, the row has

- *own kernels*: the same law without corrections;
- *kernels of the shipped table*: the prior of fits;
- *AIConfigurator*: the account (`run_agg`) by its successor aisimulate of the row's layout and batch, one prompt an
  iteration.

*Chosen with these rows*, among about eighty settings, by errors of left-out groups: how strongly effects shrink, the
model as one of the factors, and what share of a correction is applied. That share is

- half in general;
- all for steps of dense models on TensorRT-LLM (ITL is 11.3 % off there with half, 7.7 % with all);
- four fifths for prompts of MoE models.

MoE models have a fit of their own, in which effects on prompts may differ more by engine, class and model. The
likelihood of their rows says so (`python -m validation.evidence.silicon_fit --deviations`); that of dense models' rows
does not.

vLLM's dense servers would gain half a point of ITL with whole corrections. Half was kept because of a newer vLLM on a
real H200 ([gpu-measurements.md](gpu-measurements.md)): its steps are predicted within 6 % in the median with half, and
9 to 24 % too long with all. An MoE model there, by which nothing was chosen, is predicted poorly: ITL 29 % and TTFT
36 % off on average, nearly always too short.

*gpt-oss on Blackwell* is timed with activations in MXFP8, as TensorRT-LLM and SGLang multiply it by default (vLLM does
not). *AIConfigurator* has the same choice here. Decode steps of TensorRT-LLM are within 10 % with it. With the
library's own choice of 16 bits, they were 2.4 times as long as measured. MoE models on Blackwell were then 22.9 %
(TTFT; 94.4 % at p90), 9.3 % (ITL; 61.1) and 9.9 % (requests/s; 44.5) off, and what those rows taught was applied to
dense models as well.

*vLLM* is assumed to schedule a step ahead from 0.14 on, as its defaults say. On a real H200
([gpu-measurements.md](gpu-measurements.md)), TTFT p50 under random arrivals was estimated 23 % off in the median
without that and 12 % off with it. In this sample it improves TTFT by 0.5 to 2 points and worsens ITL of MoE models by
0.3. Most TensorRT-LLM rows are release candidates of 1.0, which come out worse with it, so its estimates have none.

*SGLang* is assumed to compute waiting prompts before it continues decoding, and to schedule one step ahead. This was
checked against its own overlapped scheduler at the pace of its kernels:

- *Closed loops*, with the time outside the engine that one user shows: TTFT is within 7 % and ITL within 5 % up to 32
  users. With prompts in chunks and no look-ahead, they are up to 26 and 16 % too short.
- *Random arrivals*, the very requests simulated: p50 and p95 TTFT, mean ITL and p95 E2E of a round err by 4.8, 4.8, 4.1
  and 3.2 % in the median of 14 rounds (`tests/sizing/test_arrivals_evidence.py`).

How the measured servers were started decides what is learned of them, and the sample does not say. The effects are
fitted with the settings below.

*TensorRT-LLM of InferenceX.* InferenceX publishes its launch scripts. By these, TensorRT-LLM computes whole prompts,
with 16,384 tokens an iteration (Llama 70B), 20,000 (gpt-oss) or what one prompt takes (DeepSeek). Llama 70B at 1k/1k on
fewer than eight GPUs lets prompts wait for others up to 20 steps (`batch_wait_timeout_iters`). The 54 rows show that to
the step: on B200 and H200, with all counts of users, their TTFT is 19.9 decode steps longer in the median (16.7 to 21.9
in eight of ten) than it was estimated to be. On eight GPUs and at other lengths, it is not longer. Simulated with the
wait and the same effects, TTFT errs by 5.2 % in the median instead of 63 %.

*NVIDIA's own rows* (TensorRT-LLM 1.0.0rc3, vLLM 0.12 on H100) are taken to be started as NVIDIA's own generator starts
these engines: with a budget of ISL + 2,012 tokens, and prompts whole on TensorRT-LLM. That is an inference; nobody says
so. In the logarithm, TTFT scatters about what the kernels say by

- 0.14 to 0.24 for Qwen3 with these settings (median; at p90 0.39 to 0.45);
- 0.22 to 0.29 for Qwen3 with the engines' defaults (median; at p90 0.58 to 0.87);
- 0.44 for Llama-3.1-8B either way.

*SGLang of InferenceX* is the sample's only SGLang. Its launch scripts set chunks of 16,384 (NVFP4) or 32,768 tokens
and, on Blackwell, a look at new requests only every 10 decode steps, from 16 users every 30
(`--scheduler-recv-interval`). The rows show that: from 8 to 16 users, TTFT takes ten steps longer on B200 and B300, but
not on H200, which is started without. Before the fit had these settings, estimates of the Blackwell rows with prompts
of 922 tokens had TTFT 25 to 58 % too short, and the effects took that wait for work on prompts.

The simulator follows SGLang itself with an interval of 10, at the pace of its kernels, within 5.6, 2.2, 0.9 and 1.9 %
(p50 and p95 TTFT, mean ITL, p95 E2E, median of nine rounds of random arrivals, nothing fitted). Without the interval,
p95 TTFT would be 66 % too short.

*DeepSeek-R1 on B200 by a release without a name*: 21 of 36 rows have mean TTFT of 5 to 12 s, at some lengths with four
users already, as if kernels were compiled meanwhile. They are kept.

### Open loops

Sixteen published runs of vLLM 0.15 on H100: four models, constant rates, repeated prompts. For each server, one stage
is left out and simulated with the law fitted to the others. For comparison, the row has a line through the same figure
of the other stages, and the rule of means, which uses that line through the mean as the percentile. *Chosen with such
runs in view*: the engine's look-ahead and the cost of a prompt.

### Closed loops of vLLM and SGLang

The closed loops that the next rows are fitted to, as `predict --concurrency` predicts them, percentiles included.
*Other loads*: four levels of a mix are fitted, and every measurement of the levels between them is predicted. *More
users*: the two highest levels are predicted from those below. The note has straight lines in logarithms through the
same figure of the fitted levels, if two of these have it: a measured p95 takes some two hundred requests.

Most of these loops had 20 to 150 requests of varying lengths, some of one user three, so a good part of each error is
luck. The more luck the lengths of a fitted level hold, the less of it is carried over to others. The bands allow for
that of the level asked: by the number of requests, and by how evenly the load generator is seen to draw lengths. Gaps
between tokens are those of the engine, with the scatter that a single user saw.

*Chosen with vLLM's rows in view*: that scatter, the rule that percentiles keep their simulated ratio to the mean, how
far those are off, how far a mean TTFT of steady windows is, and how a fit of MoE models begins. *With SGLang's*: that
levels with more luck count less, after one of three short requests had made others a fifth too fast. *With both*: that
the wait of a steady window does not grow beyond the measured users, as that of a start does. No number was tuned.

*Known error.* Nothing reports the limit of 8 of *few slots*; beyond it, predictions are off by 57 to 135 %.

### Random arrivals from closed loops

Real engines with random weights, measured by this program, all but the H200's on two cores (`python -m
validation.measure_servers`; the tables are in the package). The law is fitted to closed loops of 1 to 32 users at one
to three mixes of lengths. It predicts Poisson arrivals at 50, 70 and 85 % of the most requests/s of a closed loop. Each
rate has three rounds (30 to 60 seconds at the pace of GPUs, 25 on the CPU), which took turns with the closed loops.

- *vLLM at the pace of GPUs*: scheduler, KV cache and servers are those of vLLM 0.32, and each step lasts as long as
  the kernel timings of vLLM on H100 say.
- *vLLM on a CPU*: each step lasts as long as the CPU takes, which its servers and the client need as well.
- *vLLM on an H200*: vLLM 0.25.1 on a real GPU, for 20 minutes and on another day for 30: Llama-3.1-8B in bf16 at
  three mixes, Qwen3-30B-A3B in bf16 at two, Qwen3-32B in fp8 at one ([gpu-measurements.md](gpu-measurements.md)).
  Closed loops lasted 8 to 10 seconds, rates 25 to 35, most of them one round.
- *SGLang at the pace of GPUs*: SGLang 0.5.23, its steps as long as its own kernel timings say for Qwen3-32B on two
  H100. Three mixes, a *small KV cache* (4,096 tokens), a *prefix cache* and *small chunks* (512 tokens) are without
  overlap. Two mixes are *overlapped*, as SGLang schedules beside a GPU, and so is one with a *receive interval* of 10
  steps, which SGLang reports.

*Runs of SGLang were measured again* if other virtual machines took more of the processors' time than

- 10 % for the overlapped server, whose steps queue ahead of the GPU's;
- 15 % for the other prompts of 1,500 tokens, but those of the prefix cache;
- 1 % for the rest.

No model was computed beside the first two, and a mix measured with 9 to 12 % taken and with 1 % had the same ITL to 3 %
and TTFT to 6 %. There a level whose client was late was measured again too. Of the overlapped server three of 18 rounds
were void for that, and its highest rate at 512 tokens is not judged.

*A row is of one of three fits*:

- all mixes of a server together;
- *four levels of the mix alone*, as `calibration size` measures, which hardly separate the cost of a prompt token from
  the fixed cost of an iteration with a prompt;
- *four levels of the mix and one of random arrivals*, as `calibration run` ends: the first round at the middle rate,
  which is not judged.

*The law is asked about the very arrivals that a round sent*, starting from an empty server. On the H200, of SGLang
and of the MoE server at the pace of GPUs with prompts of 512 tokens, the lengths of the requests are known too.
Elsewhere their seed was not kept, and sixty draws of them are averaged. For six rounds of vLLM the arrivals are not
known either, and the law is asked about any arrivals. Requests are counted as `calibration` counts them: one at an edge
of the window by the share of its time inside, as under a load that goes on. Where in a decode step each reaches the
scheduler is left to chance.

*Luck matters*: rounds of 30 seconds have 25 to 350 requests, and the luck of their lengths moves p95 TTFT 10 to 20 %
around its mean. Notes have the errors for any arrivals as well. Nearly every vLLM server was sent the same nine
streams, so one unlucky stream counts as many errors then (p95 TTFT at the pace of GPUs is off by 12.0 % in the median).
Rounds of a rate share one law, so 132 rounds are no more than 45 tries.

*The band* is that of `size --verify`. From levels measured twice it knows how far a server varies from run to run (2 %
in all times where none was), which a busy server amplifies. Notes say how far repeated measurements lie apart, too: no
smaller error can be detected.

*The largest rate* is what a plan answers. A server that showed a p95 of m under random arrivals of r requests/s carries
r under a limit of m. So the fit is asked, as a plan asks it, for the most requests/s of a replica under that limit,
without headroom.

- The limit is freed from the luck of the arrivals as far as the law can tell it: it is the law's p95 of a long run at
  r, times measured over predicted p95 of the arrivals sent.
- Limits of at most 1.25 times the latency of an idle replica, of which a plan warns, are not judged: latency hardly
  depends on the load there.
- For comparison, the row has the rule of means: the requests/s at the highest concurrency whose mean meets the limit,
  by the same law.
- The band is the one that a plan shows, widened by the standard error of the measured p95.
- The goal of 10 %, one replica in ten, was set when two of the servers had been looked at.

*The fit is told*

- the batch limit, which vLLM's metrics lack, except for *few slots*;
- the name of the model, whose shape says how many experts a batch reads;
- of prompts that begin alike, the share that the server found in its prefix cache;
- what servers report of their scheduler: SGLang reports that prompts run before decoding, how large its chunks are, and
  whether it overlaps.

Of vLLM on a CPU and on small GPUs, the fit assumes the default of 2,048 tokens an iteration. The servers at the pace of
GPUs were given that too; those on the CPU had 1,024, and *small chunks* 256. Only on the H200 are kernel timings the
fit's prior.

*Chosen with these rows in view*: how the fit finds small chunks that no server reports, that bands of p95 TTFT hold the
6 % that those of closed loops had, and the form of the time lost outside the engine (`send_s`). That form was found on
the H200, where TTFT of the 8B model above some 3,500 output tokens/s is 10 to 30 % longer without it. GuideLLM's runs
and the published open loops test it: p95 TTFT of a stage left out has 28.7 % at p90 with it and 34.1 % without.

Nothing in the law or the fit was changed for *wide lengths*, which vary as much as their mean, *whole prompts* (no
chunked prefill), *few slots* (8 sequences at once) and *look-ahead* (asynchronous scheduling, which vLLM has off on a
CPU and on with GPUs).

*Known errors.*

- *The dense server at the pace of GPUs*: TTFT comes out 4 to 10 % too short with prompts of 64 and 512 tokens. API
  server and client share a core, and a closed loop cannot show how long a first token takes from one to the other:
  whatever delays an answer delays the user's next request as well. The prior of these fits is the time that other
  servers of the engine took to send a token, 0.08 ms; random arrivals that are fitted as well say 0.15 to 0.19 ms here.
- *The 32B model on the H200*: a decode step takes 12.9 ms with 16 sequences and 16.7 ms with 17, where vLLM switches to
  another kernel. Closed loops of 16 and 48 users do not show it, and ITL comes out up to 21 % too short.
  `calibration size` now chooses levels between powers of two as well.
- *The MoE model on the H200*: an iteration with a prompt lasts 50 to 80 ms whatever the prompt's length, because its
  host takes that long to launch it. p95 TTFT with prompts of 1,000 tokens comes out 18 to 28 % too short. As it hardly
  rises with the load there, a plan for a limit on it promises 1.6 to 2.1 times the requests/s.
- *Lengths*: closed loops of the dense server at the pace of GPUs, of the MoE server there with prompts of 512 tokens,
  of the servers on the CPU and of SGLang cover them evenly. The other servers were measured before that, and at two
  users have 4 to 13 % more requests/s by luck of their lengths.
- *SGLang's small KV cache*: requests wait at the two higher rates. Told the very requests, the law expects the mean
  TTFT of rounds up to 35 % longer than measured (2.2 s where it was 1.9 s). For a round in which just over half of the
  requests did not wait, it expects a p50 of 0.43 s where it was 42 ms.
- *SGLang cuts the last prompt of an iteration to fill it*; the simulator did not, until the very requests were replayed
  by the fitted law and SGLang's own rules: p95 TTFT of nine rounds with prompts of 1,500 tokens came within 2 % in the
  median, where the simulator's was 8 % too short.
- *SGLang's prefix cache*: p95 TTFT is 13 to 19 % too short and p50 up to 8 % too long. Of a prompt 1 to 1,500 tokens
  are left to compute, and the law takes 22 ms for a short one where the kernels take 13; the closed loops show of that
  only the mean. Fitted to their percentiles as well, p95 was 10 % too short, and other servers came out no better.
- *A model computed beside SGLang took time for itself*: its attention on a CPU is a loop over the sequences, 17 ms for
  thirty of them, as long as the GPU's whole step. The overlapped server was measured again without that attention, the
  three other mixes of 1,500 tokens without the model's layers. Prompts of 64 and 512 tokens had kept the kernels' pace
  up to 32 users.
- *Without what SGLang reports of itself*, the fit finds of each server that prompts run first and whether it overlaps,
  but not the small chunks.
- *Answers that SGLang reserves*: it reserves whole answers only for requests that ignore the end of text, as this
  project's and most load generators' do. Of others it expects a tenth to seven tenths, and takes more of them at once.

### Sessions on a prefix cache

The same vLLM at the pace of GPUs, with prefix caching and a KV cache of three sizes: roomy, tight, and thrashing, where
contexts crowd each other out before their next turn. Sessions of eight turns begin at random, once a second, for two
and a half minutes, twice. Every turn repeats the whole conversation, the server's own answers token by token.

The law is fitted to closed loops of single requests as long as turns, half of them with prompts that are mostly found
in the cache; it is given no hit rate of sessions. The share found in the cache is the server's own count, and its error
is a difference in points.

Where the cache is tight, one such measurement lies points from the mean by chance. So what is judged is a simulation of
exactly the sessions that were measured: their starts, lengths and thinking times. The note gives the simulation of any
sessions, sixty measurements starting from an empty server, and how far the mean of two lies from it by chance.

*Chosen with these rows in view*:

- *To simulate exactly these sessions*. With averages over any, the hit rate of the smallest cache is off by 3.8 points
  and the mean of later TTFT by 11.3 %.
- *The closed loops*. Those of the rows above, of 64, 512 and 1,500 tokens, give a law 7 % too fast where the pace of
  GPUs has a step, at prompts of about 1,000. With it the hit rate of the smallest cache is off by 3.2 points, and TTFT
  of later turns by 18 % (p50) and 22 % (mean).

### GuideLLM

A sweep of constant rates at sixteen mixes of lengths, each run for six minutes. The two highest rates of each mix are
predicted from the lower ones: of all mixes together, and of the mix alone. For comparison, the row has the same figure
of the mix on a straight line in logarithms through its lower rates, extrapolated.

The prediction is what the planner answers for the mix: sixteen simulated runs with the lengths that the client draws.
The formula describes a steady state, which runs near saturation do not reach in six minutes. The band covers what one
run of the kind may show: the variation due to its lengths, and what the run would have been by laws one standard error
away.

### The trace, static batches

The second half of a trace is predicted from the first; prefill and decode times of a batch from six of them.

### Systems with exact answers

The simulator, reduced to queues with a known solution, is compared with the formulas: M/M/c (with a limit of places,
with customers who give up, with priorities), M/G/1, processor sharing, arrivals whose rate jumps, batch service, fleets
behind a router. Each has at least 24 independent runs: the difference must be below 4 standard errors, and the standard
error below 1 %.

### Largest rate

The requests/s one replica carries under limits on TTFT and ITL, at p95 or p99. The answer is produced as in the
product: eight closed-loop points with 2 % noise, at two lengths that mostly differ from those of the question; then the
fit and the search. The truth is the engine itself, simulated at 400,000 requests per rate with its true law and other
random numbers, with a plain bisection.

Other rows use a curve of long prompts and one of long answers (which separate the cost of prompts from that of steps),
the formula alone, the formula with the true law, and the rule of means (the load at which mean latencies meet the
limits). The *rough engine* pads its batches, has a softer knee and 5 % jitter, none of which the law models.

### Replicas

300 random scenarios: an engine within a factor of about two to five of real ones, lengths, limits, arrivals (Poisson,
even, bursty), one of four routings, 1 to 60 times the load of a replica. The planner knows the law. Its count, without
headroom and spares, is compared with the fewest replicas that meet the SLA in long simulations with fresh random
numbers.

### Band, of simulated engines

How often the 90 % band of a replica's rate contains the truth, over repeated calibrations, at two lengths that were
not measured. Too often is also a failure: such a band is too wide to be useful.

## What is not shown

- Simulated engines follow the family of laws and schedulers that this planner assumes. Only the measured rows show that
  the law itself holds for an engine. Static batches are the only rows with steps timed one by one.
- The mean TTFT of a closed loop includes the burst of its start, of unpublished length. It says little about TTFT under
  random arrivals or a steady rate, and its band is wide.
- No measured rows have random arrivals held for hours, or on a GPU below saturation. None have several replicas behind
  a router, speculative decoding or separate prefill servers. Those features are simulated, and compared with a naive
  second simulator in the tests.
- Prefix caches are measured in the open loops, where nearly all of each prompt is found, and in sessions at one replica
  whose steps are timed as on GPUs. No row has sessions of real users.
- Calibration noise of simulated engines is 2 % and independent from point to point. A throttled or shared server is off
  by more, at all its points together.
- Day-zero estimates are checked on ten models and four GPUs of two generations, of which the table leaves out one at a
  time. With the model left out, ITL of MoE models on Blackwell is further off than by kernels alone. With the GPU left
  out, their bands of TTFT hold too seldom. Bands of GPUs that were never measured are wider, and nothing shows that
  they are wide enough.
- The time that an estimate adds to an iteration with a prompt (some 10 ms) is based on prompts that mostly fit into one
  iteration. No row shows whether each chunk of a longer prompt pays it again.

## The table

"""


def as_page(rows: Sequence[EvidenceRow], quick: bool, page: str = "") -> str:
    """The page as Markdown. Of `page`, as it was written before, the claims stay that `rows` do not have or could not
    check, and what somebody wrote below the verdict."""
    about = ABOUT.format(options=" --quick" if quick else "", enough=ENOUGH)
    kept = lines_of(page)
    unchecked = {line[0] for line in kept} - {row.name for row in rows if row.n}
    lines = merged(kept, [cells(row) for row in rows if row.name not in unchecked])
    below = page.partition("\nGoals: ")[2].partition("\n")[2]
    return f"{about}{markdown(lines)}\n{verdict(lines)}\n{below}"


def lines_of(page: str) -> list[Sequence[str]]:
    """The rows of its table as text, without the head; none where it has no such table."""
    lines = [line_cells(line) for line in page.splitlines() if line.startswith("| ")]
    return list(lines[2:]) if lines[:1] == [list(HEADER)] else []


def merged(kept: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """`kept` with the rows of each claim of `found` in place of its own: the name, which comes first, is the claim's.
    A claim that `kept` lacks follows the one before it in `found`, or comes last."""
    lines, after = list(kept), None
    for name in dict.fromkeys(line[0] for line in found):
        own = [place for place, line in enumerate(lines) if line[0] == name]
        place = own[0] if own else len(lines) if after is None else after
        lines = [line for line in lines if line[0] != name]
        new = [line for line in found if line[0] == name]
        lines[place:place] = new
        after = place + len(new)
    return lines
