# Everything here needs only Python (3.11 or newer) and make. Each target sets up what it needs in .venv; a stamp makes
# the second run quick.

PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	if command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$name; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
DATA ?= headrace-data
ARGS ?=

RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup programs run up cluster test test-all unit faults hostile spark-kills world lint format types docs reference matrix bench clean

help: ## Show this help
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or newer; none was found. Name one: make PYTHON=/path/to/python3 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } \
		|| { echo "$(PYTHON) cannot make environments: sudo apt-get install python3-venv, or name another: make PYTHON=/path/to/python3 …"; exit 1; }
	@echo "making a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(RUN_STAMP): pyproject.toml | $(VENV)/bin/python
	@echo "installing Headrace with Spark into $(VENV): some 500 MB to fetch the first time, which takes a minute or more"
	@$(BIN)/python -m pip install --quiet --editable '.[spark,speed]'
	@touch $@

$(DEV_STAMP): pyproject.toml $(RUN_STAMP)
	@echo "installing what the tests and checks need"
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' # older ones know no groups
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

setup: $(DEV_STAMP) ## Set up .venv for development

run: $(RUN_STAMP) ## See it work: a hub in ./headrace-data, live producers by five protocols, a Spark pipeline
	$(BIN)/headrace demo --data $(DATA) $(ARGS)

up: $(RUN_STAMP) ## Start a hub alone, with its log in ./headrace-data
	$(BIN)/headrace up --data $(DATA) $(ARGS)

cluster: $(DEV_STAMP) ## See a hub survive: three Kafka brokers, two hubs; the owner is killed after 20 s (needs Maven)
	PYTHONPATH=tools $(BIN)/python tools/cluster_demo.py $(ARGS)

programs: $(DEV_STAMP) ## Install the programs that tests drive, where this is allowed; say what is left out
	@$(BIN)/python tools/test_programs.py

test: $(DEV_STAMP) programs ## Run the tests, on all cores, without those that take minutes (ARGS='-k name' for some)
	@$(BIN)/python tools/run_tests.py $(ARGS)

test-all: $(DEV_STAMP) programs ## Run every test, as CI does
	@$(BIN)/python tools/run_tests.py --all

unit: $(DEV_STAMP) ## Run the quick tests only
	$(BIN)/python -m pytest tests/unit tests/conformance -m 'not slow' $(ARGS)

faults: $(DEV_STAMP) programs ## Run the fault tests: kill -9, power cut, full disk, damage
	$(BIN)/python -m pytest tests/faults $(ARGS)

hostile: $(DEV_STAMP) ## Print what hostile peers of each protocol do to honest ones (ARGS='--seconds 5 "flight largest"')
	PYTHONPATH=src:tests $(BIN)/python -m faults.hostile.table $(ARGS)

spark-kills: $(DEV_STAMP) ## Kill drivers, hubs and executors under Spark queries; count what is lost, doubled, out of order
	PYTHONPATH=src:tests:tests/spark:tools $(BIN)/python tests/spark/kills.py $(ARGS)

world: $(DEV_STAMP) ## Search for bugs in simulated worlds, on all cores, until stopped (SEED=… replays one, ARGS='--debug')
	PYTHONHASHSEED=0 $(BIN)/python tools/world.py $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: $(DEV_STAMP) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV_STAMP) ## Put the code into style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV_STAMP) ## Check types
	$(BIN)/mypy

reference: $(DEV_STAMP) ## Write the reference pages from the code
	$(BIN)/python tools/reference.py docs/reference

matrix: $(DEV_STAMP) ## Measure who may do what at which listener, and write it into docs/security.md
	PYTHONPATH=src:tests:tools $(BIN)/python -m support.rights_matrix --write

docs: $(DEV_STAMP) reference ## Build the documentation into ./site, with strict links
	@$(BIN)/python tools/test_programs.py chromium
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(DEV_STAMP) ## Run the benchmarks; they print ratios of one run
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file $(ARGS) || exit 1; done

clean: ## Remove what was made (never the data)
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis artefacts
