# Two commands need nothing but Python 3.11: `make run` and `make test`. Everything lives in .venv.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
INPUTS  := pyproject.toml setup.py constraints.txt Makefile
# Workers of pytest-xdist; tests that must be alone carry the xdist_group mark.
JOBS    ?= 2
ARGS    ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow check fmt docs bench chaos clean

help:  ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(VENV)/.dev  ## Make .venv with everything for work on this repository

run: $(VENV)/.server  ## Start the whole service on http://127.0.0.1:8000
	$(BIN)/celery-jobs up $(ARGS)

test: $(VENV)/.dev  ## Run the tests (ARGS=… goes to pytest)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow" $(ARGS)

test-slow: $(VENV)/.dev  ## Run the tests at full length
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m slow --timeout 1800 $(ARGS)

check: $(VENV)/.dev  ## Lint, format, types, import contracts, size budgets
	@$(link-rooms)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/budgets.py

fmt: $(VENV)/.dev  ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## Write the pages of docs that are generated
	$(BIN)/python -m celery_jobs.records.statesdoc > docs/states.md
	$(BIN)/python scripts/settings_page.py

bench: $(VENV)/.bench  ## Run the benchmarks (ARGS=--quick: a few minutes)
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(VENV)/.dev  ## Storms of faults over deployments, and what they broke (ARGS="embedded --seconds 60")
	$(BIN)/python -m tests.chaos $(ARGS)

clean:  ## Remove .venv and what tools left
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) comes without ensurepip; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# A stamp per extra, so that nothing happens while nothing changed; the larger one makes the smaller one true too.
$(VENV)/.server: $(INPUTS) | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[server]' -c constraints.txt
	touch $@

$(VENV)/.dev: $(INPUTS) | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[server,dev]' -c constraints.txt
	$(link-rooms)
	touch $(VENV)/.server $@

$(VENV)/.bench: $(INPUTS) | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[server,dev,bench]' -c constraints.txt
	$(link-rooms)
	touch $(VENV)/.server $(VENV)/.dev $@

# Python finds celery_jobs.<room> through the editable install's import hook; pyright runs no hooks, so it reads the
# same folders through these links (not in site-packages, where a later `pip uninstall` would delete through them,
# and not in .venv or a hidden folder, where pyright never looks for sources).
define link-rooms
	mkdir -p build/strict/celery_jobs build/untyped/celery_jobs && \
	for room in api client migrations records; do ln -sfn "../../../$$room" "build/strict/celery_jobs/$$room"; done && \
	for room in tasks testing; do ln -sfn "../../../$$room" "build/untyped/celery_jobs/$$room"; done
endef
