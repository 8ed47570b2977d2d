# Every target does its own set-up in .venv; a machine needs only Python 3.11 or newer, pip and make.
#   make demo PYTHON=python3.12        another interpreter
#   make demo ARGS="--seed 1"          more arguments for the command behind a demo
#   make test WORKERS=0                tests one after another, in one process

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Debian packages that tests need; without them those tests skip and say why.
DEBIAN_PACKAGES := bubblewrap slurm-wlm munge chromium
SHELL_SCRIPTS := .ci/run $(wildcard launch/*.sh launch/*.sbatch)

DEMO := -m rlvr_jax.cli train configs/quickstart.yaml --json
DEMO_LLM_MODEL := smollm2-135m-instruct
DEMO_LLM := -m rlvr_jax.cli train configs/smollm2_arithmetic.yaml --json

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Neighbouring tests stay in one process, which makes what they share once; who is done first takes of the other's.
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
# The demo's own environment is smaller, so quicker to make; one that can run the tests serves as well.
DEMO_READY := $(if $(wildcard $(VENV)/ready-test),$(VENV)/ready-test,$(VENV)/ready-demo)

# Whatever is missing, cannot be read or leads nowhere is an error.
SPHINX := --builder html --fail-on-warning --keep-going --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-llm test lint docs notebooks system clean

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/ready-test  ## the development environment in .venv: package, tests, linters

demo: $(DEMO_READY)  ## train a small transformer on mazes until it gets better at them
	$(BIN)/python $(DEMO) $(ARGS)

demo-llm: $(DEMO_READY)  ## train SmolLM2-135M-Instruct on arithmetic
	$(BIN)/python -m rlvr_jax.models.fetch $(DEMO_LLM_MODEL)
	$(BIN)/python $(DEMO_LLM) $(ARGS)

test: system $(VENV)/ready-test  ## all tests: the quick ones, then those marked slow
	$(PYTEST) -m "not slow"
	$(PYTEST) -m slow || test $$? -eq 5  # 5: there is no slow test

lint: $(VENV)/ready-test  ## ruff, basedpyright, shellcheck and hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/hadolint launch/Dockerfile

docs: $(VENV)/ready-test  ## docs/methods.md from the docstrings of the objective, and the site in build/site
	$(BIN)/python -m rlvr_jax.objective.describe > docs/methods.md
	$(BIN)/python -m sphinx $(SPHINX) docs build/site

notebooks: $(VENV)/ready-test  ## run the notebooks and keep their outputs
	PYTHONWARNINGS=ignore $(BIN)/jupyter-execute --inplace $(wildcard notebooks/*.ipynb)

system:  ## Debian packages that some tests need, where it is root on Debian
	@if [ -z "$(strip $(DEBIAN_PACKAGES))" ]; then \
	    echo "system: no Debian package is needed"; \
	elif [ "$$(id -u)" != 0 ] || [ ! -f /etc/debian_version ]; then \
	    echo "system: not root on Debian, so tests that need $(DEBIAN_PACKAGES) may skip"; \
	elif dpkg-query --show $(DEBIAN_PACKAGES) >/dev/null 2>&1; then \
	    echo "system: $(DEBIAN_PACKAGES): already here"; \
	else \
	    apt-get update --quiet=2 && \
	    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $(DEBIAN_PACKAGES); \
	fi

clean:  ## remove .venv and caches; runs/ and .cache/ (fetched models) stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find rlvr_jax tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Where venv cannot install pip (a Debian without python3-venv), the interpreter's own pip does.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlvr_jax needs Python 3.11 or newer, and" \
	    " $(PYTHON) is %d.%d: say which to use, as in make PYTHON=python3.12." % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $@ install --quiet pip; }

$(VENV)/ready-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (one to three minutes the first time)"
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@
