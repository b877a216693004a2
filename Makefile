# One recipe a task. `make venv` is all the others need; it installs from PyPI alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
CORE := model vendors inventory placement scheduler wire

.DEFAULT_GOAL := help
.PHONY: help venv run test check format coverage conformance bench bench-openb clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(STAMP) ## Set up .venv with the partage command and the development tools

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Partage needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

run: venv ## Schedule the example manifests of all four protocols and print the outcome
	@$(BIN)/partage schedule examples || [ $$? -eq 3 ]

test: check coverage ## Lint, types, import contracts and all tests (what CI runs)

check: venv ## Lint, formatting, types and import contracts
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

coverage: venv ## Run the tests; branch coverage of the core must be 95 % or more
	$(BIN)/python -m pytest -n $(JOBS) $(CORE:%=--cov=partage.%) --cov-branch --cov-report=term:skip-covered --cov-fail-under=95

conformance: venv ## Write docs/conformance.md: every manifest and result of the four published documents
	$(BIN)/python -m partage.testing.conformance

bench: venv ## Run the benchmarks and print their figures
	$(BIN)/python bench/schedule.py

bench-openb: venv ## Replay all published openb experiments and compare every figure (PARTAGE_OPENB=folder)
	$(BIN)/python bench/openb.py

clean: ## Remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
