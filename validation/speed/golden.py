"""What the program answers, kept before a change and compared after it, to the last digit.

Run: python -m validation.speed.golden keep FOLDER     before: 20 plans, 3 fits, 4 simulations, a report of each kind
     python -m validation.speed.golden check FOLDER    after: exit 1 names what differs

Only command lines are asked, so that it outlives any change of layout. Figures are those of one machine: keep and check
on the same one.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

QWEN = "--model Qwen/Qwen3-32B --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms"
QWEN_8B = "--model Qwen/Qwen3-8B --isl 1000 --osl 200 --ttft p95:1s"
REFERENCE = "--points data/curves/reference-cpu.csv --isl 64 --osl 32"
PLANS = (
    f"{QWEN} --gpu h200_sxm --precision bf16",
    f"{QWEN} --gpu h200_sxm,h100_sxm",
    f"{QWEN} --gpu h100_sxm --precision fp8 --tp 1,2 --routing least_outstanding",
    f"{QWEN} --gpu h100_sxm --routing round_robin --arrivals gamma:cv=2",
    f"{QWEN} --gpu h200_sxm --precision bf16 --tp 2 --arrivals constant --headroom 0 --spare 0",
    f"{QWEN} --gpu h200_sxm --precision fp8 --isl-cv 0.6 --osl-cv 0.8 --correlation 0.4",
    f"{QWEN} --gpu h200_sxm --precision fp8 --prefix-tokens 800 --prefix-hit 0.7",
    f"{QWEN} --gpu h200_sxm --e2e p99:20s --max-tokens 512 --price 2.5 --peak-factor 2",
    f"{QWEN} --gpu h200_sxm,h100_sxm --price h100_sxm=2.5,h200_sxm=3.8 --mix --available h100_sxm=8",
    f"{QWEN_8B} --gpu h100_sxm --rate 8 --peak-factor 2.5 --price 2.5",
    f"{QWEN_8B} --gpu h100_sxm --daily 2,1,1,1,1,2,4,8,15,20,22,21,18,20,22,21,18,14,10,8,6,5,4,3",
    f"{QWEN_8B} --gpu l40s --rate 3 --routing power_of_two --isl-cv 0.5",
    f"{QWEN_8B} --gpu a100_sxm --rate 400 --arrivals batch:size=8",
    f"{QWEN_8B} --gpu h200_sxm --rate 40 --tune",
    "--model Qwen/Qwen3-32B --gpu h200_sxm --workload chat:isl=1000,osl=200,rate=5,ttft=p95:1s"
    " --workload batch:isl=4000,osl=500,rate=1,e2e=p95:60s",
    "--model Qwen/Qwen3-235B-A22B --gpu gb200 --isl 8729 --osl 28 --isl-cv 0.5 --osl-cv 0.3 --rate 3.27"
    " --e2e p95:2.6219s --arrivals constant --headroom 0 --spare 0",
    "--model deepseek-ai/DeepSeek-R1 --gpu h200_sxm --isl 2000 --osl 500 --rate 5 --ttft p95:3s --itl p95:60ms",
    f"{QWEN} --gpu h200_sxm --precision bf16 --itl p95:2ms",
    f"--model reference-512x4 {REFERENCE} --rate 20 --ttft p95:200ms --itl p95:40ms",
    f"--model reference-512x4 {REFERENCE} --rate 60 --e2e p99:3s --osl-cv 0.5 --basis measured --headroom 0",
)
LAW = "--weights 4.8ms --overhead 1ms --token 20us --sequence 10us --kv-token 49ns --isl 1000 --osl 200"
ASKED: dict[str, str] = {
    **{f"plan {number}": f"plan {asked} --json" for number, asked in enumerate(PLANS, 1)},
    "fit whole": "fit --points data/curves/reference-cpu.csv --json",
    "fit open loop": "fit --points data/curves/reference-cpu.csv --open-loop --json",
    "predict": f"predict {REFERENCE} --rate 12 --method simulate --json",
    "simulate": f"simulate {LAW} --rate 3 --seed 7 --json",
    "simulate varied": f"simulate {LAW} --isl-cv 0.5 --osl-cv 0.8 --rate 8 --seed 3 --token-gaps --json",
    "simulate static": f"simulate {LAW} --policy static --rate 3 --seed 5 --json",
    "simulate tight": f"simulate {LAW} --kv-tokens 20000 --kv-policy max_utilization --rate 6 --json",
    "capacity": f"capacity --gpus 16 {QWEN.replace('--rate 20 ', '')} --gpu h200_sxm --json",
    "whatif": f"whatif {QWEN} --gpu h200_sxm --precision bf16 --tp 2 --change precision=fp8 --json",
}
KINDS = ("json", "html", "xlsx", "pdf")


def asked(arguments: str) -> bytes:
    """What the command prints, its exit code last. Raises RuntimeError for a traceback, which is no answer."""
    done = subprocess.run([sys.executable, "-m", "sizing", *arguments.split()], capture_output=True)
    if b"Traceback" in done.stderr:
        raise RuntimeError(f"sizing {arguments}: {done.stderr.decode()}")
    return done.stdout + done.stderr + f"exit {done.returncode}\n".encode()


def reported(kind: str) -> bytes:
    """A report of the first plan, without the moment of its making; of a PDF the text."""
    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder) / "plan.json", Path(folder) / f"report.{kind}"
        plan.write_bytes(asked(f"plan {PLANS[0]} --json").rpartition(b"exit ")[0])
        printed = asked(f"report --plan {plan} --out {out}")
        if not out.exists():
            return printed
        return text_of(out.read_bytes(), kind)


def text_of(content: bytes, kind: str) -> bytes:
    """What a reader sees: the sheets of a workbook, the pages of a PDF."""
    if kind == "xlsx":
        with zipfile.ZipFile(io.BytesIO(content)) as book:
            content = b"".join(book.read(name) for name in sorted(book.namelist()) if not name.startswith("docProps"))
    if kind == "pdf":
        import pypdfium2  # type: ignore[import-untyped]  # of the test set-up

        pages = pypdfium2.PdfDocument(content)
        content = "\n".join(page.get_textpage().get_text_bounded() for page in pages).encode()
    return content


def undated(content: bytes) -> bytes:
    """The answer without the moment of its making, the program's version and a report's digest, which covers both."""
    return re.sub(
        rb"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?|\d\d:\d\d UTC|report [0-9a-f]{12}|(?<=izing )\d+[.]\d+[.]\d+",
        b"BLOTTED",
        content.replace(b"DATE", b"BLOTTED"),
    )


def everything() -> dict[str, bytes]:
    """Name -> what came out."""
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(ASKED, pool.map(asked, ASKED.values()), strict=True))
    return answers | {f"report {kind}": reported(kind) for kind in KINDS}


@click.command()
@click.argument("task", type=click.Choice(["keep", "check"]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def golden(task: str, folder: Path) -> None:
    """Keep every answer in FOLDER, or compare today's with those kept there."""
    now = {name.replace(" ", "-"): content for name, content in everything().items()}
    if task == "keep":
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in now.items():
            (folder / name).write_bytes(content)
    differing = [name for name, content in now.items() if undated(content) != undated((folder / name).read_bytes())]
    whole = hashlib.sha256(b"".join(undated(now[name]) for name in sorted(now))).hexdigest()[:12]
    click.echo(
        f"{len(now)} answers, {len(differing)} differ, digest {whole}" + "".join(f"\n{name}" for name in differing)
    )
    sys.exit(bool(differing))


if __name__ == "__main__":
    golden()
