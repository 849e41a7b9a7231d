# The commands of the project; `make help` lists them.
#
#   PYTHON=3.12     which Python makes .venv (a version or a program)
#   EXTRA=cuda13    cpu, cuda12 or cuda13 instead of asking the driver
#   TORCH_INDEX=URL an index that has the CPU build of torch

.DEFAULT_GOAL := help
.PHONY: help setup setup-here check test test-long bench smoke report gpu wheels clean
SHELL := /bin/bash

found := $(shell for name in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$name && break; \
	done)
asked := $(filter command environment,$(origin PYTHON))
PYTHON ?= $(found)
python := $(if $(filter 3.%,$(PYTHON)),python$(PYTHON),$(PYTHON))
venv := .venv/bin/python
newest = $(lastword $(sort $(wildcard runs/*/)))
# Containers often forbid bytecode. Setup compiles none ahead, so that each process would then
# compile torch's source anew: 4.1 s of CPU time to import it instead of 2.0.
check test test-long bench smoke report: export PYTHONDONTWRITEBYTECODE :=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with what this machine can use (no-op when it is there)
	@$(python) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "setup: needs Python 3.10 or newer; '$(or $(python),python3)' is none: make setup PYTHON=3.12" >&2; exit 1; }
	@$(python) -m verifyscope.install venv --extra '$(EXTRA)' --torch-index '$(TORCH_INDEX)' $(if $(asked),--this-python)

setup-here: ## add light packages to the active python; torch, triton, NCCL, FlashInfer stay
	@$(python) -m verifyscope.install here

check: setup ## formatting, lint, types, import contracts
	@$(venv) -m ruff format --check .
	@$(venv) -m ruff check .
	@$(venv) -m mypy
	@$(venv) -c 'from importlinter.cli import lint_imports_command as run; run()'

# Two workers on two cores: more threads in each would wait for one another. The compile gate is one
# long test: what is queued behind it goes to the other worker.
test: export OMP_NUM_THREADS := 1
test: setup ## the tests but for the full product of configurations
	@$(venv) -m pytest -n 2 --dist worksteal --benchmark-disable -m "not long"

test-long: setup ## all tests, with the full product of configurations
	@$(venv) -m pytest -n 2 --dist worksteal --benchmark-disable

bench: setup ## the main job: sweep, stub, compile gate, all suites, budget; a report under runs/
	@$(venv) -m verifyscope.diagnose --model kimi-k2.5 --tp 8 --minutes 5 --compile 90 120 -k ''

smoke: setup ## a few seconds: what this machine can do, one op listed, one budget
	@$(venv) -m verifyscope
	@$(venv) -m kernels --list | head -5
	@$(venv) -m graphs.replay --model kimi-k2.5 --tp 8 --rows 4 --context 8192 \
		--predict rtx-pro-6000-server --records /dev/null

report: setup ## a report of the newest run, or of RUN=runs/...
	@$(venv) -m reports.build $(or $(RUN),$(newest),$(error report: runs/ is empty; 'make bench' makes a run))

gpu: ## the first nine minutes on a GPU: checks, ceilings, suites; uses the active python
	@$(if $(asked),$(python),$(or $(shell command -v python3),$(python))) -m suites.gpu

wheels: ## fill .wheels for make gpu on a machine without network: make wheels PYTHON=3.12
	@$(found) -m suites.wheels $(if $(asked),--python $(patsubst python%,%,$(PYTHON)))

clean: ## remove .venv, caches and build files; runs/ and .wheels/ stay
	rm -rf .venv build *.egg-info .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
