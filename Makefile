.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
# What runs the platform; what checks and tests it too.
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(PY) -m pip install --disable-pip-version-check -c constraints.txt
# kserve's client wants an older psutil than constraints.txt has: a test's environment, beside the platform's.
KSERVE := $(VENV)/kserve/.installed
CHROMIUM := $(VENV)/.chromium
# openapi-python-client wants an older typer.
GENERATOR := $(VENV)/generator/.installed
# What checks the dashboard's modules; they need none of it.
PAGES := $(VENV)/pages
export PYTHONPATH := $(CURDIR)
# Compiled code is kept, whatever the caller says: the platform and its tests start hundreds of processes, and each would compile it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install dev lock demo up down test numeric search check fmt bench migrate clean

help: ## This list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "%-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml client/pyproject.toml constraints.txt
	@test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) -e ./client -e '.[embedded,examples,forecast,report]'
	$(PY) -m scheduler.policy
	@touch $@

$(DEV): $(STAMP)
	$(PIP) --quiet -e ./client -e '.[embedded,examples,forecast,report,dev]'
	@touch $@

$(KSERVE): Makefile | $(DEV)
	@test -x $(VENV)/kserve/bin/python || $(PY) -m venv $(VENV)/kserve
	$(VENV)/kserve/bin/python -m pip install --quiet --disable-pip-version-check kserve==0.21.0
	@touch $@

# Tests of the dashboard's pages drive it, and are skipped without it.
$(CHROMIUM): Makefile | $(DEV)
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install -y chromium > /dev/null; } \
		|| echo "chromium is not here and could not be installed: the tests of pages will be skipped."
	@touch $@

$(GENERATOR): Makefile | $(DEV)
	@test -x $(VENV)/generator/bin/python || $(PY) -m venv $(VENV)/generator
	$(VENV)/generator/bin/python -m pip install --quiet --disable-pip-version-check openapi-python-client==0.29.1
	@touch $@

$(PAGES)/.installed: tools/pages/package-lock.json | $(DEV)
	@mkdir -p $(PAGES) && cp tools/pages/package*.json $(PAGES)
	@npm ci --silent --ignore-scripts --prefix $(PAGES) || echo "npm is not here or could not install: the dashboard's modules are not checked."
	@touch $@

install: $(STAMP) ## The .venv with what runs the platform

dev: $(DEV) ## The .venv with what checks and tests it too

# Below this line of constraints.txt stands what is resolved.
RESOLVED := ^. Resolved on
lock: ## constraints.txt anew, from an environment of the newest versions that its first lines allow; then every test
	rm -rf build/lock && mkdir -p build && $(PY) -m venv build/lock
	sed '/$(RESOLVED)/q' constraints.txt > build/constraints.txt
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check -c build/constraints.txt -e ./client -e '.[embedded,examples,forecast,report,dev]'
	build/lock/bin/python -m pip freeze --exclude smore-client --exclude smore-platform | sed 's/+.*//' | grep -vxFf build/constraints.txt >> build/constraints.txt
	mv build/constraints.txt constraints.txt
	$(MAKE) test

demo: $(STAMP) ## Some minutes of functions next to training on this machine, and a report
	$(PY) -m lab.demo.run

up: $(STAMP) ## The whole platform on this machine; stays
	$(PY) -m smore.cli up

down: $(STAMP) ## End what `make up` started
	$(PY) -m smore.cli down

# Most tests wait for processes, so more files at a time than two cores take less time. Files start in the order that tests/conftest.py
# gives them, the longest first: by default those with few tests come last, and the longest are among them.
# One thread for each process: threads of several processes that spin for the same two cores cost more than they give.
test: $(DEV) $(KSERVE) $(GENERATOR) $(CHROMIUM) ## Every test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Each in processes of its own; the first is this processor's best with as many threads as it has cores.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell
SSE := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=generic
numeric: $(DEV) ## Tests of numbers with other instructions of the processor and with one thread
	@for given in "" "$(AVX2)" "$(SSE)"; do for threads in "" OMP_NUM_THREADS=1; do \
		echo "With $${given:-all instructions} $$threads"; \
		env -u OMP_NUM_THREADS $$given $$threads $(PY) -m pytest -q -m numeric $$(grep -rl "mark.numeric" tests --include=*.py) || exit 1; \
	done; done

# `make test` tries the same examples every time.
search: $(DEV) ## Tests of properties with other examples, round after round, until one fails or ROUNDS (20) are over
	@for round in $$(seq $${ROUNDS:-20}); do $(PY) -m pytest -q --hypothesis-profile=search $$(grep -rl "@given" tests) || exit 1; done

check: $(DEV) $(PAGES)/.installed ## Formatting, lint, types, layers, what is generated
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	@! test -x $(PAGES)/node_modules/.bin/biome || ! test -x $(PAGES)/node_modules/.bin/tsc || { $(PAGES)/node_modules/.bin/tsc -p tools/pages && $(PAGES)/node_modules/.bin/biome lint --config-path tools/pages --diagnostic-level warn --error-on-warnings api/ui; }
	$(PY) -m tools.client_types --check
	$(PY) -m tools.reference --check
	$(PY) -m tools.house

fmt: $(DEV) ## Format and fix; write the client's types and the reference pages from the code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(PY) -m tools.client_types
	$(PY) -m tools.reference

bench: $(STAMP) ## The path of an invocation against its peer; docs/research/log/benchmarks.md names the others
	$(PY) -m lab.bench.path --json

migrate: $(STAMP) ## Bring the database to the newest schema
	$(PY) -m migrations

clean: ## Remove what tests and tools left behind (not .smore: that is data)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
