# One command each; all of them prepare what they need. `make help` lists them.
#
# PYTHON=python3.12 make setup   chooses the interpreter; otherwise the first suitable one is taken.
# make demo ARGS=--json          passes arguments on; so do test and test-all.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all gpu-check lint docs dist clean

BIN := .venv/bin
STAMP := .venv/.complete
ARGS ?=
# Tests start hundreds of processes, which should not compile the package again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

setup: $(STAMP)  ## prepare .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@for python in $${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do \
	    "$$python" -c '$(SUITABLE)' >/dev/null 2>&1 && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "setup: no Python 3.11 or newer with venv and ensurepip found" \
	         "(tried: $${PYTHON:-python3, python3.11 to python3.14});" \
	         "install one (Debian: apt install python3-venv) or name it: make setup PYTHON=/path/to/python" >&2; \
	    exit 2; \
	fi; \
	echo "setup 1/3: .venv with $$($$python --version)"; \
	{ $(BIN)/python -c '$(SUITABLE)' && $(BIN)/python -m pip --version; } >/dev/null 2>&1 \
	    || "$$python" -m venv --clear .venv
	@echo "setup 2/3: $$(grep ^torch== constraints.txt), the largest package, pinned and first so that nothing pulls another build"
	@$(PIP_INSTALL) "$$(grep ^torch== constraints.txt)"
	@echo "setup 3/3: assay and everything else in constraints.txt (a few minutes)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@
	@echo "setup: done; this is not repeated until pyproject.toml or constraints.txt changes"

demo: setup  ## train a tiny model to reason, from nothing, in minutes, and write its report
	@$(BIN)/assay demo $(ARGS)

test: setup  ## run the fast tests
	@echo "test: the fast tests (make test-all runs the slow ones too)"
	@$(PYTEST) $(ARGS)

test-all: setup  ## run every test that this machine can: slow ones, and gpu and peer where present
	@echo "test-all: every test that this machine can run; this takes a while"
	@$(PYTEST) -m "" $(ARGS)

gpu-check: setup  ## on a CUDA machine: gpu tests, doctor, demo and benches in ten minutes, in one JSON file
	@$(BIN)/python -m bench.gpu_check $(ARGS)

lint: setup  ## check style (ruff), format (ruff) and types (pyright)
	@echo "lint: ruff check"
	@$(BIN)/python -m ruff check .
	@echo "lint: ruff format --check"
	@$(BIN)/python -m ruff format --check .
	@echo "lint: pyright, and beside it strict on types, errors, host, endpoint, config, learn, verify and reward_models"
	@$(BIN)/python -m pyright --version >/dev/null
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; failed=0; \
	$(BIN)/python -m pyright -p pyright-strict.json >"$$said" 2>&1 & \
	$(BIN)/python -m pyright || failed=1; \
	wait $$! || failed=1; \
	cat "$$said"; exit $$failed

docs: setup  ## build the pages as a site, in build/docs/site
	@$(PIP_INSTALL) -e '.[docs]'
	@$(BIN)/python tools/site.py

dist: setup  ## build the wheel and the source package into dist/
	@$(BIN)/python tools/dist.py dist

clean:  ## remove .venv and every cache; runs are kept
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
