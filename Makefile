# Two commands do all the set-up: `make demo` renders real frames, `make test` runs the tests.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-faults test-slow soak check bench addon clean

help:
	@echo "make demo   install into $(VENV), start an embedded farm, render 12 frames"
	@echo "make test   install, check style, types and import rules, run the tests"
	@echo "make test-slow  more of what real renderers do; put another Blender first on PATH to try that one"
	@echo "make test-faults  the longer proofs: seeds of the simulation, planted bugs, real processes killed"
	@echo "make soak   ten minutes without a broker, then 100,000 seeds of the simulation on every core (SEEDS=, FIRST=)"
	@echo "make check  the checks alone"
	@echo "make bench  the benchmarks, with their ratios"
	@echo "make bench-matching  every policy on ten seeds of simulated farms, against the targets"
	@echo "make addon  build the Blender add-on into dist/"

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; on Debian: apt install python3"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null; } \
	  || { echo "Python's venv module is missing; on Debian: sudo apt install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	@command -v blender >/dev/null || $(BIN)/python -c 'import bpy' 2>/dev/null \
	  || { echo "No blender here: trying the bpy wheel (about 350 MB) ..."; \
	       $(BIN)/python -m pip install -q --disable-pip-version-check 'bpy==4.5.*' \
	         || echo "The bpy wheel cannot be had either."; }
	$(BIN)/farm demo

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The programs that tests start by the hundred are compiled once, not each time anew, even where the environment
# forbids to keep bytecode.
test test-slow test-faults soak: export PYTHONDONTWRITEBYTECODE :=

# Most tests wait for processes: three at once keep two cores busy. A file's tests stay together, for its servers.
test: check
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m slow

# Most of it waits, so that four at once keep two cores busy; what is held to a time comes after all else.
# The outage of the broker lasts ten minutes in `make soak`.
test-faults: export FARM_TEST_OUTAGE_S ?= 120
FAULTS := tests/contract tests/e2e tests/faults tests/simulation tests/workers
test-faults: $(VENV)/.installed-dev
	@failed=0; \
	$(BIN)/pytest $(FAULTS) -m 'faults and not timed' -n 4 --dist load --maxschedchunk 1 --timeout 1200 --durations 10 || failed=1; \
	$(BIN)/pytest tests/e2e -m 'faults and timed' -n 2 --dist loadfile --timeout 1200 --durations 10 || failed=1; \
	exit $$failed

SEEDS ?= 100000
FIRST ?= 0
soak: $(VENV)/.installed-dev
	$(BIN)/pytest -m faults -s tests/e2e/test_outages.py -k long_outage
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --jobs $$(nproc)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench

bench-matching: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.bench.matching --results build/bench-matching.json

addon: $(VENV)/.installed
	$(BIN)/python -m plugins.blender.build_addon dist

clean:
	rm -rf $(VENV) build dist demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
