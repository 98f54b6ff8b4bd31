import pathlib, sys, re
root = pathlib.Path(sys.argv[1])
def sub(f, *pairs):
    p = root / f; s = p.read_text()
    for a, b in pairs:
        assert a in s, (f, a); s = s.replace(a, b, 1)
    p.write_text(s)
sub("ui/pages/simulate.py",
 ("import streamlit as st\n\nfrom learn import course_view, lesson_view\n", "from importlib import import_module\n\nimport streamlit as st\n\n"),
 ('''    if shown == "lesson":
        lesson_view.page()
    elif shown == "course":
        course_view.page(scenario)
    else:
        _replica(scenario)
''', '''    if shown in LEARN:
        import_module(LEARN[shown]).page(scenario)
    else:
        _replica(scenario)
'''),
 ('''LOOKS = {
    "time"''', '''LEARN = {"lesson": "learn.lesson_view", "course": "learn.course_view"}
"""Views of another room, found by name."""
LOOKS = {
    "time"'''))
sub("learn/lesson_view.py", ("def page() -> None:", "def page(_: object = None) -> None:"))
sub("Makefile", ("$(BIN)/python -m validation.speed", "$(BIN)/python -m validation.speed"))
p = root / "Dockerfile"; s = p.read_text()
p.write_text(s.replace("COPY ui ui\n", "COPY ui ui\nCOPY triton_tools triton_tools\nCOPY learn learn\nCOPY lab lab\nCOPY validation validation\n"))
p = root / ".dockerignore"; s = p.read_text()
p.write_text(s.replace("!ui\n", "!ui\n!triton_tools\n!learn\n!lab\n!validation\n"))
sub("sizing/queueing/percentiles.py", ("Error against the simulator of the same law (validation", "Error against the simulator (validation"))
sub("validation/speed/queueing.py", ("Run: python -m validation.speed.queueing [--requests 100000] [--arrivals gamma:cv=2] [--replicas 8 --routing round_robin]\n", "Run: python -m validation.speed.queueing [--requests 100000] [--arrivals gamma:cv=2]\n         [--replicas 8 --routing round_robin]\n"))
p = root / "pyproject.toml"; s = p.read_text()
p.write_text(s.replace('testpaths = ["tests", "sizing", "calibration"]', 'testpaths = ["tests", "sizing", "calibration", "triton_tools", "learn", "validation"]'))
for f in ("lab/gpu/README.md", "README.md", "docs/local-server.md", "lab/gpu/go.py", "lab/gpu/measure.py"):
    p = root / f
    if p.exists():
        s = p.read_text()
        s = s.replace("[gpu/](lab/gpu/README.md)", "[lab/gpu/](lab/gpu/README.md)").replace("options of gpu.measure", "options of lab.gpu.measure").replace("Started by gpu.go", "Started by lab.gpu.go").replace("that gpu.go made", "that lab.gpu.go made")
        p.write_text(s)
sub("lab/gpu/home.py", ('DATA = Path(__file__).parents[1] / "data"', 'DATA = Path(__file__).parents[2] / "data"'))
sub("triton_tools/repository/local.py", ('MODELS = Path(__file__).parents[1] / "reference" / "models"', 'MODELS = Path(__file__).parents[2] / "lab" / "reference" / "models"'))
sub("ui/views/method.py", ("ROOT = Path(__file__).parents[1]", "ROOT = Path(__file__).parents[2]"))

(root / "tests/test_layers.py").write_text(pathlib.Path(__file__).with_name("layers.py.txt").read_text())
# NoFeasiblePlan carries rejections: it lives with them
p = root / "sizing/errors.py"; s = p.read_text()
m = re.search(r"\n\nclass NoFeasiblePlan\(.*?(?=\n\nclass |\Z)", s, re.S)
body = m[0].strip("\n")
s = s.replace(m[0], "")
s = re.sub(r"\nif TYPE_CHECKING:\n    from sizing.plans import Rejection\n", "\n", s)
s = s.replace("from typing import TYPE_CHECKING\n", "").replace("from collections.abc import Sequence\n", "")
p.write_text(s)
p = root / "sizing/plans.py"; s = p.read_text()
i = s.index("@dataclass(frozen=True, slots=True)\nclass Fleet:")
s = s[:i] + body + "\n\n\n" + s[i:]
s = s.replace("from sizing.errors import ", "from sizing.errors import SizingError, ", 1) if "from sizing.errors import " in s else s.replace("from sizing.", "from sizing.errors import SizingError\nfrom sizing.", 1)
if "from collections.abc import" not in s: s = s.replace("from dataclasses", "from collections.abc import Sequence\nfrom dataclasses", 1)
elif not re.search(r"from collections.abc import [^\n]*\bSequence\b", s): s = re.sub(r"from collections.abc import ([^\n]*)", r"from collections.abc import \1, Sequence", s, count=1)
p.write_text(s)
import subprocess
for f in subprocess.check_output(["git", "ls-files", "*.py"], cwd=root, text=True).split():
    p = root / f
    if not p.exists() or f in ("sizing/errors.py", "sizing/plans.py"): continue
    s = p.read_text()
    def fix(m):
        names = [n.strip() for n in m[2].strip("() \n").replace("\n", " ").split(",") if n.strip()]
        if "NoFeasiblePlan" not in names: return m[0]
        rest = [n for n in names if n != "NoFeasiblePlan"]
        return (f"{m[1]}from sizing.errors import {', '.join(rest)}\n" if rest else "") + f"{m[1]}from sizing.plans import NoFeasiblePlan"
    t = re.sub(r"(?m)^([ \t]*)from sizing\.errors import (\([^)]*\)|[^\n(]+)", fix, s)
    if t != s: p.write_text(t)
