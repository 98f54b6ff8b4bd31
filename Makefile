# make app       install what is needed and open the planner
# make test      set up and run the quick tests: all but browser, servers and long    make test-all  every test
# make check     lint and types        make bench   speeds, side by side        make coverage  what `make test` reaches
# make laws      fit the day-zero laws again, half an hour on two cores
# make dist      wheel and source archive in dist/, the wheel tried            make docs-api  API pages in .cache/api/
# make lock      refresh requirements.txt and requirements-test.txt from pyproject.toml: UPGRADE=1 for newer versions
# make fuzz      hostile input for every reader: INPUTS=10000, SEED=N for the same again
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8501
LOCK = $(BIN)/uv pip compile --universal --python-version 3.11 --quiet $(if $(UPGRADE),--upgrade) --custom-compile-command "make lock"

export OPENBLAS_NUM_THREADS ?= 1

.PHONY: app test test-all check bytecode kernels laws bench fuzz coverage dist docs-api lock system browser timings clean

app: $(VENV)/stamp
	$(BIN)/streamlit run serve.py --server.port $(PORT) --server.headless $(if $(DISPLAY),false,true) --server.showEmailPrompt false

# `make test` leaves out tests that drive Chromium, start the real Triton or vLLM, or take long (tests/long.csv): most of
# the time, and the part of the set-up that takes packages from apt and makes environments of 2 GB. PART=K/N adds the
# K-th of N parts of them, as CI does; `make test-all` runs every test.
# What is left computes, and each worker loads all libraries, test files and machine code for itself: two keep two cores
# busy. Of the others so many wait for servers and browsers that it takes four; files that take long come first
# (tests/conftest.py).
PYTEST = $(BIN)/python -m pytest -n $(1) --dist loadfile --no-loadscope-reorder --durations 30
QUICK := -m "not browser and not triton and not vllm and not long"

test: $(VENV)/stamp-test kernels $(if $(PART),system timings)
	$(if $(PART),$(call PYTEST,4) --part $(PART),$(call PYTEST,2) $(QUICK))

test-all: $(VENV)/stamp-test system kernels timings
	$(call PYTEST,4) --junitxml .cache/tests.xml

# Machine code of the simulator, of the fit and of a shared fleet: a minute once, which the workers would otherwise all
# spend at once. It needs only what runs, so that CI compiles while it installs what tests. The stamp lies beside the
# code, and is as old as it: what the code is made of is STAMPED in sizing/compiled.py.
PLAN := $(BIN)/python -m sizing plan
COMPILED := sizing/simulator/__pycache__/compiled
kernels: $(COMPILED)
$(COMPILED): $(VENV)/stamp $(wildcard sizing/simulator/*.py sizing/queueing/*.py sizing/engine.py sizing/workload.py)
	$(PLAN) --model Qwen/Qwen3-32B --gpu h200_sxm --isl 2000 --osl 256 --rate 20 --ttft p95:1s > /dev/null
	$(PLAN) --model reference-512x4 --points data/curves/reference-cpu.csv --isl 64 --osl 32 --rate 100 --ttft p95:500ms \
	  --routing least_outstanding > /dev/null
	mkdir -p $(@D) && touch $@

# Test files and the libraries that they import, compiled by one process in a new clone, not by each worker at once.
bytecode: $(VENV)/stamp-test
	$(BIN)/python -m pytest --collect-only --quiet > /dev/null

check: $(VENV)/stamp-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/stamp-test
	$(BIN)/python -m sizing bench
	$(BIN)/python -m validation.speed

fuzz: $(VENV)/stamp-test
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),10000) $(if $(SEED),--seed $(SEED))

coverage: $(VENV)/stamp-test
	$(BIN)/python -m pytest $(QUICK) --numprocesses auto --dist loadfile --cov --cov-report term:skip-covered

dist: $(VENV)/stamp-test
	rm -rf dist
	$(BIN)/hatchling build
	$(BIN)/python -m pytest tests/test_package.py

# `import *` because the names of `sizing` are loaded on first use, and pdoc shows only those that are there
docs-api: $(VENV)/stamp-test
	$(BIN)/python -c "from sizing import *; from pdoc.__main__ import cli; cli()" sizing sizing.planner sizing.plans sizing.workload sizing.engine sizing.points sizing.prediction sizing.errors -o .cache/api

# The library needs none of its requirements for what is asked of it here: step times and memory.
laws: $(VENV)/stamp timings
	$(BIN)/python -m sizing.estimate.build_laws

timings: .cache/kernels/stamp
.cache/kernels/stamp: sizing/estimate/kernels.py | $(VENV)/stamp
	rm -rf .cache/kernels
	$(BIN)/pip install --quiet --no-deps --target .cache/kernels $$($(BIN)/python -c 'from sizing.estimate.kernels import REQUIREMENT; print(REQUIREMENT)')
	touch $@

lock: $(VENV)/stamp-test
	$(BIN)/pip install --quiet uv
	$(LOCK) pyproject.toml --extra app -o requirements.txt
	$(LOCK) pyproject.toml --extra app --extra cluster --group test -c requirements.txt -o requirements-test.txt

# From apt come Chromium, which the browser tests drive, this Python's shared library, which Triton's Python backend loads
# and Debian's own Python keeps in a package of its own, and Prometheus, unpacked and not installed, which would start it
# as a service. Everything else comes from the lock files.
# The browser waits for nothing: apt brings it while pip fills the venv.
system: browser $(VENV)/stamp
	@$(BIN)/python -c 'from lab.tritonserver import libpython_folder; libpython_folder()' 2>/dev/null \
	  || ./.ci/install libpython$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	@command -v prometheus >/dev/null || [ -x .cache/prometheus/usr/bin/prometheus ] || ./.ci/unpack prometheus

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || ./.ci/install chromium fonts-dejavu-core

$(VENV)/stamp: requirements.txt
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11, 3.12 or 3.13 is needed; install one, or name it: make app PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "error: no venv module; on Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	touch $@

$(VENV)/stamp-test: requirements-test.txt $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --requirement requirements-test.txt
	touch $@

clean:
	rm -rf $(VENV) .cache dist
