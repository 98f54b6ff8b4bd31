"""Does the load generator itself keep up? It is tested on a mock server with known timings, at the planned load.

The mock is a program of the lab, which depends on this package: it is started by name, and exchanges lines of JSON.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any, NamedTuple, TypeVar

from calibration.errors import KEY, ClientLimitedError, ServerError
from calibration.load import pool, system
from calibration.load.contract import Contract, ModelInput
from calibration.load.loops import Job
from calibration.load.openai_contract import KINDS, OpenAiContract
from calibration.metrics.precision import Until
from calibration.metrics.window import tokens_inside, within
from calibration.plan import Protocol, ServerPlan
from calibration.records import Load
from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import RequestSource
from sizing.files import IMPORTED_FROM
from sizing.numbers import per_second, significant
from sizing.workload import Seconds

MOST_ADDED_TTFT_S = 0.005
MOST_ITL_ERROR = 0.01
MEASURED_S = 1.5
LONGEST_E2E_S = 0.5
FEWEST_TOKENS = 4
PROMPT_TOKENS = 128
WARM_UP = 1
NEVER_BEFORE_THE_BUDGET = 1_000_000_000

MOCK = "lab.mock.server"
ENDS_WITHIN_S = 5.0


class TrueTimes(NamedTuple):
    """The mock's true mean TTFT and ITL, in seconds, of the `requests` that arrived in a window and were answered.

    `itl_s` is NaN if no answer had two responses.
    """

    requests: float
    ttft_s: float
    itl_s: float


class Mock:
    """A running mock: `grpc_url` and `http_url` as host:port, the `contract` of its model, the `pid` of its process."""

    def __init__(self, process: subprocess.Popen[str], said: Mapping[str, Any]) -> None:
        self.grpc_url, self.http_url = str(said["grpc_url"]), str(said["http_url"])
        inputs = {name: ModelInput(datatype, optional) for name, datatype, optional in said["inputs"]}
        self.contract = Contract(said["model"], inputs, tuple(said["outputs"]), batched=True)
        self.pid = process.pid
        self._process = process

    def plan(self, protocol: Protocol) -> ServerPlan:
        """The mock as a plan's server."""
        urls = {"grpc": self.grpc_url, "http": self.http_url, "openai": f"http://{self.http_url}"}
        return ServerPlan(protocol=protocol, url=urls[protocol], model=self.contract.model)

    @property
    def openai_contract(self) -> OpenAiContract:
        """The contract of an OpenAI server: the mock answers like the first of the known ones, vLLM."""
        return OpenAiContract(self.contract.model, "completions", KINDS[0].fields, KINDS[0].minimum)

    def true_times(self, start_s: float, stop_s: float) -> TrueTimes:
        """Those of requests in [start_s, stop_s) of `time.perf_counter`. Raises ServerError if the mock is gone."""
        return TrueTimes(**self.ask(window=[start_s, stop_s]))

    def ask(self, **question: object) -> Any:
        """The mock's answer to a question of `lab.mock.server`. Raises ServerError if the mock is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{json.dumps(question)}\n")
            self._process.stdin.flush()
        except OSError:
            raise ServerError(f"{self.grpc_url}: the mock has ended") from None
        answer = self._process.stdout.readline()
        if not answer:
            raise ServerError(f"{self.grpc_url}: the mock has ended")
        return json.loads(answer)


AnyMock = TypeVar("AnyMock", bound=Mock)


@contextmanager
def started(
    script: Mapping[str, object],
    kind: Callable[[subprocess.Popen[str], Mapping[str, Any]], AnyMock],
    program: str = MOCK,
) -> Iterator[AnyMock]:
    """A mock that answers by `script`, fields of `lab.mock.service.Script`, in a process of its own on free ports.

    It shares no event loop with the load generator under test. Raises ServerError if it does not start.
    """
    command = [sys.executable, "-m", program, json.dumps(script)]
    # in a session of its own: Ctrl-C reaches only the parent, and the mock ends when its stdin closes
    with subprocess.Popen(
        command, stdin=PIPE, stdout=PIPE, text=True, cwd=IMPORTED_FROM, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise ServerError(
                    f"the mock of the load generator ({program}) did not start, see its message above; without it set "
                    f"{KEY}",
                    "client: {self_check: false}",
                )
            yield kind(process, json.loads(said))
        finally:
            with suppress(BrokenPipeError):  # it died with a question to it unread
                process.stdin.close()
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True, slots=True)
class Distortion:
    """How the load generator distorts known timings, with `users` streams over its `processes`.

    `added_ttft_s`: reported mean TTFT minus the mock's true one. `itl_error`: relative error of the mean ITL; 0 if
    answers have one token. `ideal_per_s`: the requests/s of a client without any delay. `cpu_cores` and `busiest_core`
    as in `records.ClientHealth`.
    """

    users: int
    processes: int
    added_ttft_s: float
    itl_error: float
    requests_per_s: float
    ideal_per_s: float
    cpu_cores: float
    busiest_core: float

    @property
    def acceptable(self) -> bool:
        """TTFT is off by 5 ms at most, ITL by 1 %."""
        return abs(self.added_ttft_s) <= MOST_ADDED_TTFT_S and abs(self.itl_error) <= MOST_ITL_ERROR

    @property
    def text(self) -> str:
        """For people: ``2 processes: TTFT +1.2 ms, ITL +0.1 %, 378 of 382 requests/s``."""
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"{processes}: TTFT {1e3 * self.added_ttft_s:+.1f} ms, ITL {100 * self.itl_error:+.1f} %, "
            f"{significant(self.requests_per_s)} of {per_second(self.ideal_per_s)}"
        )


def processes_needed(
    users_or_in_flight: int,
    tokens_per_s: float,
    ttft_s: float,
    itl_s: float,
    osl: int,
    protocol: Protocol,
    *,
    fewest: int = 1,
    most: int | None = None,
    measure: Callable[..., Distortion] | None = None,
) -> Distortion:
    """The distortion of the first number of processes (`fewest`, twice as many ...) for which it is acceptable.

    At most `most` of them, by default the usable cores. Raises ClientLimitedError, with what was reached, if all
    distort too much.
    """
    measure = measure or check
    most = min(users_or_in_flight, most or len(system.usable()) or os.cpu_count() or 1)
    tried = []
    processes = min(fewest, most)
    while True:
        found = measure(users_or_in_flight, tokens_per_s, ttft_s, itl_s, osl, protocol, processes=processes)
        if found.acceptable:
            return found
        tried.append(found)
        if processes >= most:
            break
        processes = min(2 * processes, most)
    raise ClientLimitedError(
        f"the load generator on this machine would distort {users_or_in_flight} streams over {protocol} by more than "
        f"{1e3 * MOST_ADDED_TTFT_S:g} ms or {100 * MOST_ITL_ERROR:g} %: plan less load, or run it on a machine with "
        f"more free cores ({'; '.join(each.text for each in tried)})"
    )


def check(
    users_or_in_flight: int,
    tokens_per_s: float,
    ttft_s: float,
    itl_s: float,
    osl: int,
    protocol: Protocol,
    *,
    processes: int = 1,
) -> Distortion:
    """Measure the mock for a few seconds with so many open streams, and compare with its true timings.

    `ttft_s` and `itl_s` are those of one request on the idle server to be measured, `tokens_per_s` its estimated
    maximum in all (infinite: all streams at those timings). Raises as `pool.drive` does.
    """
    planned = rehearsal(users_or_in_flight, tokens_per_s, ttft_s, itl_s, osl)
    with started({"ttft_s": planned.ttft_s, "itl_s": planned.itl_s}, Mock) as mock:
        load_job = job(mock, planned.e2e_s, users_or_in_flight, planned.osl, protocol)
        load = pool.drive(load_job, until(), processes=processes)
        truth = mock.true_times(load.start_s, load.stop_s)
    return distortion(load, truth, users_or_in_flight, ideal_per_s=users_or_in_flight / planned.e2e_s)


class Rehearsal(NamedTuple):
    """Timings of the mock in seconds, and tokens of each answer, one per response."""

    ttft_s: float
    itl_s: float
    osl: int

    @property
    def e2e_s(self) -> float:
        """Seconds from a request to its last token."""
        return self.ttft_s + (self.osl - 1) * self.itl_s


def rehearsal(users: int, tokens_per_s: float, ttft_s: float, itl_s: float, osl: int) -> Rehearsal:
    """Timings that put the planned load on the client within seconds.

    Streams and tokens/s are those planned: timings are stretched if they would give more than `tokens_per_s`. Long
    answers are shortened to about `LONGEST_E2E_S`, and their TTFT such that each stream still takes as many tokens/s:
    with the fraction f of the tokens it is f TTFT + (1 - f) ITL.

    >>> rehearsal(128, math.inf, ttft_s=0.5, itl_s=0.02, osl=500)
    Rehearsal(ttft_s=0.043..., itl_s=0.02, osl=24)
    """
    e2e_s = ttft_s + (osl - 1) * itl_s
    stretch = max(1.0, users * osl / tokens_per_s / e2e_s)
    wanted = math.ceil(osl * LONGEST_E2E_S / (e2e_s * stretch))
    tokens = min(osl, max(FEWEST_TOKENS, wanted))
    share = tokens / osl
    return Rehearsal(stretch * (share * ttft_s + (1 - share) * itl_s), stretch * itl_s, tokens)


def distortion(load: Load, truth: TrueTimes, users: int, ideal_per_s: float) -> Distortion:
    """The client's view of the requests that it sent in the window, compared with the mock's: `truth`."""
    log = load.log.where(within(load, load.log.sent_s) & ~load.log.failed)
    if not len(log) or not truth.requests:
        failures = "; ".join(sorted({error for error in load.log.error if error})[:1]) or "none was answered in time"
        raise ClientLimitedError(f"the load generator cannot measure its own mock: {failures}")
    after = log.tokens - log.first_chunk_tokens
    gaps_s = (log.last_token_s - log.first_token_s)[after > 0] / after[after > 0]
    compared = bool(gaps_s.size and truth.itl_s > 0)
    return Distortion(
        users=users,
        processes=load.client.processes,
        added_ttft_s=float((log.first_token_s - log.sent_s).mean() - truth.ttft_s),
        itl_error=float(gaps_s.mean() / truth.itl_s - 1) if compared else 0.0,
        # in tokens, because whole requests are too few and too long
        requests_per_s=tokens_inside(load.log, load) / load.duration_s / float(log.tokens.mean()),
        ideal_per_s=ideal_per_s,
        cpu_cores=load.client.cpu_cores,
        busiest_core=load.client.busiest_core,
    )


def until(measured_s: float = MEASURED_S) -> Until:
    """Measure for this long, however precise the means are."""
    return Until(requests_min=NEVER_BEFORE_THE_BUDGET, budget_s=measured_s)


def job(
    mock: Mock,
    e2e_s: float,
    users: int,
    osl: int,
    protocol: Protocol,
    *,
    arrivals_s: Seconds | None = None,
) -> Job:
    """The load on a mock that answers in `e2e_s`: a closed loop of `users`, or, with `arrivals_s`, an open loop."""
    ahead = math.ceil((WARM_UP + 2 + MEASURED_S / e2e_s) * users) if arrivals_s is None else len(arrivals_s)
    return Job(
        server=mock.plan(protocol),
        contract=mock.openai_contract if protocol == "openai" else mock.contract,
        source=RequestSource(LengthsPlan(isl=float(PROMPT_TOKENS), osl=float(osl)), None, False, (0,)),
        users=users if arrivals_s is None else None,
        arrivals_s=arrivals_s,
        warm_up=WARM_UP,
        ramp_s=e2e_s,  # users that start together would send in lockstep, unlike in any sweep
        ahead=ahead,
    )
