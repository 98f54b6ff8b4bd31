"""README and docs do what they say: commands print what the page shows, plans can be read, links lead somewhere.

The blocks of a page run in order, in an empty folder of the page's own that sees the repository's `data`:

- ```` ```console ````: every line that starts with `$ ` is run by bash and must exit with 0; what it prints to standard
  output must be what follows in the block. A line of `...` stands for any lines. A command that ends with `&` is a
  server: it is ready when it has printed its first line, and is stopped at the end of the page.
- ```` ```sh ````: commands that must exit with 0; what they print is not compared.
- ```` ```python ````: a program that must end without an error.
- ```` ```yaml ````: a calibration plan, or a part of one (without `lengths`), read by the program's own reader.

`python -m sizing` and the programs run in this process, which has their libraries loaded, unless the shell has a part
in the command. Every other command is a process of its own, and so are those of the README, which show how all begins.

Two comments in front of a block change this. `<!-- file: NAME -->` writes the block to NAME, for a command further down
the page, which must use it. `<!-- not run: REASON -->` leaves the block out, for one of the reasons in NOT_RUN.

Compared is what remains after these rules: spaces at the ends of lines go; the folder of the page is `/home/you`;
times of day are equal to each other; ports 8000 to 8002 stand for free ones. After `<!-- measured -->`, where the
figures are those of a clock, every number equals every other, and so does every width of a gap.
"""

from __future__ import annotations

import gc
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from runpy import run_module, run_path
from typing import Any

import pytest

import sizing
from calibration.plan import parse_plan
from sizing.report.build import cells as table_cells
from validation.evidence.page import ABOUT
from validation.evidence.table import ENOUGH

ROOT = Path(__file__).parents[1]
ROOMS = ("docs", "data", "deploy", "examples", "lab", "learn", "triton_tools", "validation")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "lab" / "gpu" / "README.md"]
EVERY_PAGE = [*ROOT.glob("*.md"), *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.md")))]
NOT_RUN = {
    "installs packages": "make, pip and apt change the machine",
    "needs a GPU machine": "and a copy of the packed environment on it",
    "needs a server elsewhere": "a GPU server of the reader's, a Dask cluster",
    "starts Triton": "its first start downloads 250 MB or more; tests marked triton start it",
    "starts vLLM": "its first start downloads 500 MB or more; tests marked vllm start it",
    "starts SGLang": "its first start downloads 500 MB or more",
    "runs for minutes": "benchmarks and the table of evidence; other tests run their parts",
    "needs root, docker, a cluster or a proxy": "tests/test_deploy.py checks the files they name",
}
LANGUAGES = {"console", "sh", "python", "yaml"}
FENCE = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*(?:(?<=\\)\n.*)*)\n((?:(?!\$ ).*\n)*)", re.M)
PLAIN = re.compile(r"python ((?:-m sizing |block_)(?:'[^'\n]*'|[^'\"|&;<>$`*?\\\n])*)")
"""A program of ours called with words that the shell only passes on."""
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
MINIMAL_PLAN = "lengths: [{isl: 64, osl: 32}]\nconcurrency: [1]\n"
SECONDS = 120.0


@dataclass(frozen=True)
class Block:
    """A fenced block with the comments in front of it, name -> text."""

    language: str
    text: str
    marks: dict[str, str]
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        marks = dict(re.findall(r"<!-- ([\w ]+?)(?:: (.*?))? -->", match[1]))
        found.append(Block(match[2], match[3], marks, text.count("\n", 0, match.start(2)) + 1))
    return found


def commands(block: Block) -> list[tuple[str, str | None]]:
    """The commands of a block, each with what the page says it prints; None where the page does not say."""
    if block.language == "console":
        assert block.text.startswith("$ "), f"line {block.line}: a console block starts with a command"
        return [(command, shown) for command, shown in COMMAND.findall(block.text)]
    if block.language == "sh":
        return [(block.text, None)]
    return []


def same(shown: str, printed: str, measured: bool) -> bool:
    """Whether a page shows what was printed."""
    parts = [re.escape(comparable(part, measured)) for part in re.split(r"^\.\.\.\n", shown, flags=re.M)]
    return re.fullmatch("(?:.*\n)*?".join(parts), comparable(printed, measured)) is not None


def comparable(text: str, measured: bool) -> str:
    text = re.sub(r" +$", "", text, flags=re.M)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)", "TIME", text)
    if measured:
        text = re.sub(r" {2,}|^ +", " ", re.sub(r"\d+(,\d{3})*(\.\d+)?", "N", text), flags=re.M)
    return text


@dataclass
class Session:
    """The folder in which the blocks of one page run, one after the other."""

    folder: Path
    in_process: bool = True
    ports: dict[str, str] = field(default_factory=lambda: {port: free_port() for port in ("8000", "8001", "8002")})
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """That of the tests, without what would change an answer, and with a store of the page's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIZING_", "COLUMNS"))}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SIZING_DATABASE_URL": f"sqlite:///{self.folder / 'calibration.db'}",
        }

    def outward(self, text: str) -> str:
        return re.sub(r"\b800[0-2]\b", lambda port: self.ports[port[0]], text)

    def homeward(self, text: str) -> str:
        for shown, used in self.ports.items():
            text = re.sub(rf"\b{used}\b", shown, text)
        return text.replace(str(self.folder), "/home/you")

    def run(self, command: str) -> str:
        """What a command printed to standard output; fails unless it ends well."""
        if self.in_process and (call := PLAIN.fullmatch(command.replace("\\\n", " ").strip())):
            return self.homeward(self._run_here(shlex.split(self.outward(call[1]))))
        call = ["bash", "-euo", "pipefail", "-c", self.outward(command)]
        if command.rstrip().endswith("&"):
            call[-1] = "exec " + call[-1].rstrip()[:-1]
            server = subprocess.Popen(
                call, cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
            self.servers.append(server)
            assert server.stdout is not None
            return self.homeward(server.stdout.readline())
        done = subprocess.run(
            call, cwd=self.folder, env=self.environment(), capture_output=True, encoding="utf-8", timeout=SECONDS
        )
        assert done.returncode == 0, f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        return self.homeward(done.stdout)

    def _run_here(self, words: list[str]) -> str:
        """What Python, called with these words, prints."""
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        mine, before, collected = self.environment(), dict(os.environ), gc.get_threshold()
        with chdir(self.folder), redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:] if words[0] == "-m" else words)
            patch.delitem(sys.modules, "sizing.__main__", raising=False)  # as in a process that has just begun
            os.environ.clear()
            os.environ.update(mine)
            try:
                if words[0] == "-m":
                    run_module(words[1], run_name="__main__", alter_sys=True)
                else:
                    run_path(words[0], run_name="__main__")
            except SystemExit as end:
                assert not end.code, f"{words}\nexit code {end.code}"
            finally:
                os.environ.clear()
                os.environ.update(before)
                gc.set_threshold(*collected)
        return printed.buffer.getvalue().decode()  # type: ignore[attr-defined]

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.outward(text), encoding="utf-8")


@contextmanager
def session(folder: Path, in_process: bool = True) -> Iterator[Session]:
    (folder / "data").symlink_to(ROOT / "data")
    here = Session(folder, in_process)
    try:
        yield here
    finally:
        for server in here.servers:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=SECONDS)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    with session(tmp_path, in_process=page.name != "README.md") as here:
        for block in blocks(page):
            if "not run" in block.marks:
                continue
            if "file" in block.marks:
                here.write(block.marks["file"], block.text)
            elif block.language == "yaml":
                part = "lengths:" not in block.text
                parse_plan((MINIMAL_PLAN if part else "") + block.text, f"{page.name}:{block.line}")
            elif block.language == "python":
                here.write(f"block_{block.line}.py", block.text)
                here.run(f"python block_{block.line}.py")
            for command, shown in commands(block):
                printed = here.run(command)
                assert shown is None or same(shown, printed, "measured" in block.marks), (
                    f"{page.name}, line {block.line}: {command}\nprints\n{printed}"
                )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_leaves_no_command_out_unseen(page: Path) -> None:
    """Every block has a language, no command hides in an indented one, and files that are written are used."""
    found = blocks(page)
    assert [block.line for block in found if not block.language] == []
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^(?: {4}|\t)(?![-*\d ]).*", prose, re.M) == [], "fence it, with a language"
    run = [command for block in found if "not run" not in block.marks for command, _ in commands(block)]
    run += [block.text for block in found if block.language == "python"]
    for name in (block.marks["file"] for block in found if "file" in block.marks):
        assert any(name in command for command in run), f"no command uses {name}"


def test_what_is_not_run_has_a_reason() -> None:
    marked = [block.marks["not run"] for page in PAGES for block in blocks(page) if "not run" in block.marks]
    assert set(marked) == set(NOT_RUN), "a reason that is not known, or is not needed any more"
    assert all(block.language in LANGUAGES for page in PAGES for block in blocks(page) if "not run" in block.marks)


def test_a_difference_is_seen() -> None:
    """The comparison itself: figures and order count, unless the page says that they are measured."""
    assert same("a 1\n...\nb\n", "a 1 \nx\ny\nb\n", measured=False)
    assert same("a\n...\n", "a\n", measured=False)
    assert not same("a 1\n", "a 2\n", measured=False)
    assert not same("a\n...\nb\n", "a\nb\nc\n", measured=False)
    assert same("at 2026-01-02T03:04:05+00:00\n", "at 2027-11-12T13:14:15+00:00\n", measured=False)
    assert same("TTFT   21.4 ms\n", "TTFT 1,021 ms\n", measured=True)
    assert not same("TTFT 21.4 ms\n", "ITL 21.4 ms\n", measured=True)


def anchors(page: Path) -> set[str]:
    """The names by which a link reaches the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(
        r"\b(?:sizing|calibration|ui|triton_tools|learn|lab|validation|tests)/[\w./-]+\.py\b", page.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_summary_of_the_evidence_says_what_the_table_says() -> None:
    """Each figure of `docs/how-it-works.md` is that of a row of `docs/accuracy.md`."""
    lines = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    table = [row for row in map(table_cells, lines) if len(row) > 9]
    rows = {(row[0], row[3]): row for row in reversed(table)}  # the first of a name
    told = " ".join((ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8").split())
    kinds, metrics = ("dense servers", "mixtures of experts"), ("requests/s", "TTFT mean", "ITL mean")

    def off(question: str, metric: str) -> str:
        return " and ".join(rows[f"{kind}, {question}", metric][4].removesuffix(" %") for kind in kinds) + " %"

    def lines_off(metric: str) -> str:
        notes = [rows[f"{kind}, other loads", metric][9] for kind in kinds]
        return " and ".join(note.split("interpolation ")[1].split(" %")[0] for note in notes) + " %"

    def held(kind: str, question: str) -> str:
        notes = [rows[f"band, {kind}, {question}", metric][9] for metric in metrics]
        first, second, last = (note.removeprefix("covers ").split(" %")[0] for note in notes)
        return f"{first}, {second} and {last} %"

    def listed(shares: list[str]) -> list[str]:
        return [*(share.removesuffix(" %") for share in shares[:-1]), shares[-1]]

    rate, ttft, itl = metrics
    vllm, largest = "random arrivals from closed loops", "largest rate, fit and simulation"
    means, replicas = "largest rate, rule of means", rows["replicas, planned with the true law", "count of replicas"][9]
    servers = [
        {row[3]: row[4] for row in table if row[0] == vllm and row[1].startswith(server)}
        for server in ("vLLM at the pace", "SGLang at the pace", "vLLM on an H200")
    ]
    sla = "requests/s under the SLA"
    limits = [f"requests/s under a p95 {metric}" for metric in ("TTFT", "ITL", "E2E")]
    carried = [rows[f"largest rate, {vllm}", limit] for limit in limits]
    bands = [rows[f"band, largest rate, {vllm}", limit][9].removeprefix("covers ").split(" %")[0] for limit in limits]
    missed = [row[9].split("headroom too much in ")[1].split(" %")[0] for row in carried]
    hopeful = [row[9].split("rule of means ")[1].split(" %")[0] for row in carried]
    loops = [rows["closed loops of vLLM, other loads", of][4] for of in (rate, "TTFT p95", "E2E p95", "gap p95")]
    kinds_estimated = ("dense servers", "mixtures on Hopper", "mixtures on Blackwell")
    estimated = {
        metric: [rows[f"estimates, {kind}, model and GPU left out", metric] for kind in kinds_estimated]
        for metric in (itl, ttft)
    }
    estimates = {metric: [row[4].removesuffix(" %") for row in found] for metric, found in estimated.items()}
    kernels = {
        metric: [row[9].split("; own kernels ")[1].split(" %")[0] for row in found]
        for metric, found in estimated.items()
    }
    for sentence in (
        "mean ITL is off by {} % (dense), {} % (MoE on Hopper) and {} % (MoE on Blackwell) in the median, mean TTFT by "
        "{}, {} and {} %.".format(*estimates[itl], *estimates[ttft]),
        "off by {}, {} and {} % in ITL and by {}, {} and {} % in TTFT.".format(*kernels[itl], *kernels[ttft]),
        "requests/s are off by {}, p95 TTFT by {}, p95 E2E by {}, p95 of the gaps between tokens by {}".format(*loops),
        f"requests/s are off by {off('other loads', rate)}, mean ITL by {off('other loads', itl)}, "
        f"mean TTFT by {off('other loads', ttft)} in the median, where straight lines in logarithms have "
        f"{lines_off(rate)}, {lines_off(itl)}, {lines_off(ttft)}.",
        f"requests/s are off by {off('other lengths', rate)}, mean ITL by {off('other lengths', itl)}, "
        f"mean TTFT by {off('other lengths', ttft)}.",
        f"hold {held(kinds[0], 'other loads')} of the figures of dense servers between loads and "
        f"{held(kinds[0], 'other lengths')} at other lengths, of MoE models {held(kinds[1], 'other loads')} and "
        f"{held(kinds[1], 'other lengths')}.",
        *(
            f"mean ITL {of['ITL mean']}, p95 E2E {of['E2E p95']}, TTFT {of['TTFT p50']} (p50) and "
            f"{of['TTFT p95']} (p95) in the median"
            for of in servers
        ),
        "are off by {}, {} and {} in the median (p90 {}, {} and {}),".format(
            *listed([row[4] for row in carried]), *listed([row[5] for row in carried])
        ),
        "the 90 % bands hold {}, {} and {} %.".format(*bands),
        "The rule of means, by the same laws, promises {}, {} and {} % too much.".format(*hopeful),
        "that a plan keeps by default, {}, {} and {} % of the answers are still too much".format(*missed),
        f"{rows['systems with exact answers', 'mean or percentile'][2]} queues with exact answers",
        f"exact in {replicas.split('exact ')[1].split(')')[0]}, right to one replica or 3 % in "
        f"{replicas.removeprefix('right ').split(' (')[0]}, and never too small",
        f"off by {rows[largest, sla][4]} in the median (p90 {rows[largest, sla][5]}). Sizing by means is off by "
        f"{rows[means, sla][4]} (p90 {rows[means, sla][5]})",
    ):
        assert sentence in told, sentence
    medians = sorted((row[4] for row in carried), key=lambda share: float(share.removesuffix(" %")))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"were off by {medians[0].removesuffix(' %')} to {medians[-1]} in the median" in readme


def test_the_walk_through_the_planner_has_the_figures_of_its_plan() -> None:
    """`docs/architecture.md` follows the question of examples/library.py: its sentences say what that plan has."""
    question: dict[str, Any] = {"rate": 20.0, "isl": 2000, "osl": 256, "ttft": "p95:1s", "itl": "p95:30ms"}
    plan = sizing.plan("Qwen/Qwen3-32B", gpus="h200_sxm", precisions="bf16", **question)
    best, law = plan.answer, plan.answer.candidate.replica.law
    fewest = {str(fleet.candidate.layout): fleet.gpus for fleet in reversed(plan.fleets)}
    planned = f"{best.requests_per_s_per_replica:.2f}"
    told = " ".join((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split())
    for sentence in (
        f"On {best.candidate.layout} an iteration reads the weights in {1e3 * law.weights_s:.1f} ms.",
        f"{best.capacity_per_s:.2f} requests/s on {best.candidate.layout}.",
        f"planned at {planned} requests/s; 20 ÷ {planned} = {20 / float(planned):.2f}, so {best.working} working",
        f"TP4 needs {fewest['TP4']} GPUs, TP8 {fewest['TP8']}, TP1 {fewest['TP1']}.",
        f"{best.gpus_low} to {best.gpus_high} GPUs with 90 % confidence.",
    ):
        assert sentence in told, sentence


def test_the_accuracy_page_is_written_by_its_command() -> None:
    """Its words are those of `sizing validate`; the rows, which take hours, are the ones last written."""
    written = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    prose, bar, _ = written.partition("| claim | against |")
    assert bar and prose == ABOUT.format(options="", enough=ENOUGH)
