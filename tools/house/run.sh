#!/usr/bin/env bash
# The mechanical part of the new layout, in one go: run.sh WORKTREE (clean, with .venv in it). See README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) && cp "$here"/* "$scratch" && cd "$1"
python3 "$scratch/move.py" . "$scratch/map.txt"
doc() { printf '"""%s\n\n%s\n"""\n' "$2" "$3" > "$1/__init__.py"; }
doc triton_tools "Triton's own world: model repositories built and checked, its batchers simulated, the TensorRT-LLM backend's clients." \
  "A tenant: it may import sizing and calibration, never the reverse; command lines find it by name."
doc lab "Test beds: the reference server (real Triton, a small engine of our own) and the script for a machine with a GPU." \
  "A tenant: it may import sizing and calibration, never the reverse; command lines find it by name."
doc learn "The batching lesson and the sizing course, with their views of the Simulate page and their commands." \
  "A tenant: it may import sizing and ui, never the reverse; pages and command lines find it by name."
doc validation "Every claim again: evidence beside its goals, and speeds." \
  "A tenant: it may import all rooms, none imports it; command lines find it by name."
sed -i 's/packages = \["sizing", "calibration", "ui", "gpu", "benchmarks"\]/packages = ["sizing", "calibration", "ui", "triton_tools", "learn", "lab", "validation"]/; s/known-first-party = .*/known-first-party = ["sizing", "calibration", "ui", "triton_tools", "learn", "lab", "validation"]/; s/"gpu.engine.triton_ops"/"lab.gpu.engine.triton_ops"/' pyproject.toml
git add -A; .venv/bin/ruff check --fix -q . || true; .venv/bin/ruff format -q .; git add -A
git commit -qm "The tenants part from the core: triton_tools, learn, lab, validation"
python3 "$scratch/fold.py" . "$scratch/renames.txt" "$scratch/folds.txt"
echo '"""The planner'"'"'s command line: ``python -m sizing COMMAND``."""' > sizing/cli/__init__.py
sed -i 's/"triton\.\*", "pynvml\.\*"\]/"triton.*", "pynvml.*", "xlsxwriter.*", "joblib.*", "grpc.*", "google.*"]/' pyproject.toml
git add -A; .venv/bin/ruff check --fix -q . || true; .venv/bin/ruff format -q .
sed -i 's/_BESIDE = ("replica.py", "steptime.py", "workload.py")/_BESIDE = ("engine.py", "workload.py")/' sizing/simulator/state.py
sed -i 's/  # type: ignore\[import-untyped\]//' triton_tools/repository/{source,messages,staging}.py triton_tools/batcher/pbtxt.py lab/gpu/served.py
git rm -q -f sizing/commands/__init__.py sizing/fleets/__init__.py ui/{size,compare,curves,calibrate}/__init__.py
python3 "$scratch/patch.py" .
.venv/bin/ruff check --fix -q . || true; .venv/bin/ruff format -q .
git add -A
