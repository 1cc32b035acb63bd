# Millstream. Needs Linux x86-64, CPython 3.11 to 3.14 with venv, and make; everything else is fetched.
PYTHON ?= python3
DEVICE ?= cpu
BIN := .venv/bin
# Quick tests first, the slowest last; one run, so one closing line.
TESTS := tests/test_*.py tests/unit tests/property tests/contract tests/sim tests/fuzz tests/integration
PYTEST_ARGS ?=
UP ?=

.PHONY: run install test check lint soak lock clean-data

run: install  ## install everything, then run the platform in the foreground
	@$(BIN)/millstream up $(UP)

install:  ## fill .venv from the lock files (about 6 GB the first time)
	@$(PYTHON) infra/locks/install.py --device $(DEVICE)

test: install  ## every test
	@$(BIN)/pytest $(PYTEST_ARGS) $(wildcard $(TESTS))

lint: install  ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

check: lint test  ## what CI runs

soak: install  ## the long forms
	@MILLSTREAM_SOAK=1 $(BIN)/pytest $(PYTEST_ARGS) $(wildcard $(TESTS))

lock: install  ## resolve the lock files anew
	@$(BIN)/python infra/locks/lock.py

clean-data:  ## forget all data of ./.millstream
	rm -rf .millstream
