# make app   install what is needed and open the planner        make test   set up and run every test
# make check lint and types        make bench   speeds, side by side        make lock   refresh requirements.lock
# make fuzz  hostile input for every reader: INPUTS=10000, SEED=N for the same again
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8501

export OPENBLAS_NUM_THREADS ?= 1

.PHONY: app test check bench fuzz lock system clean

app: $(VENV)/stamp
	$(BIN)/streamlit run serve.py --server.port $(PORT) --server.headless $(if $(DISPLAY),false,true) --server.showEmailPrompt false

test: $(VENV)/stamp system
	$(BIN)/python -m pytest

check: $(VENV)/stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/stamp
	$(BIN)/python -m validation.speed

fuzz: $(VENV)/stamp
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),10000) $(if $(SEED),--seed $(SEED))

lock: $(VENV)/stamp
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --quiet requirements.txt -o requirements.lock

# From apt come Chromium, which the browser tests drive, and this Python's shared library, which Triton's Python backend
# loads and Debian's own Python keeps in a package of its own. Everything else comes from the lock file.
system: $(VENV)/stamp
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || ./.ci/install chromium fonts-dejavu-core
	@$(BIN)/python -c 'from lab.reference.environment import libpython_folder; libpython_folder()' 2>/dev/null \
	  || ./.ci/install libpython$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

$(VENV)/stamp: requirements.lock
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11, 3.12 or 3.13 is needed; install one, or name it: make app PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "error: no venv module; on Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	touch $@

clean:
	rm -rf $(VENV) .cache
