# The project's few commands; `make help` lists them.

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PINS  := requirements/torch.txt requirements/runtime.txt requirements/frameworks.txt requirements/dev.txt

# The pins are for Python 3.11; another one is tried where that is missing.
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
# For the newest of everything: any that the package supports.
NEWEST_PYTHON ?= python3.13
# The pip that Python brings takes three times as long to choose a file for each of 150 pins.
PIP := pip==26.3
# Processes that run the tests.
JOBS ?= 2
# More words for pytest, for example PYTEST_ARGS="-k folder -x".
PYTEST_ARGS ?=
# The tests of saving, loading, stores and the command line but for the slowest, of about a minute:
# make test-oldest PYTEST_ARGS='$(QUICK)'
QUICK := $(addprefix tests/,saver/test_saver.py loader/test_loader.py loader/test_dataset.py \
    store/test_store_contract.py cli/test_cli.py) -k 'not forgotten and not more_than_a_page'
# Tests of processes and workers, which begin as they do by default from Python 3.14 on:
# make test PYTEST_ARGS='$(FORKSERVER)'
FORKSERVER := -p tests.support.forkserver $(addprefix tests/,test_process.py loader/run/test_workers.py \
    torch/test_torch_iterable.py)

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-newest test-oldest lint bench s3

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## install everything into .venv (does nothing when up to date)

# Everything is pinned, so that two halves go in beside each other and nothing is resolved: pip check
# holds that nothing is missing, and the last line that torch is the pinned one.
$(STAMP): pyproject.toml $(PINS)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --no-deps $(PIP)
	$(PY) -m pip install --no-deps -r requirements/dev.txt & dev=$$!; \
	    $(PY) -m pip install --no-deps $(addprefix -r ,$(filter-out %/dev.txt,$(PINS))) && \
	    $(PY) -m pip install --no-deps --no-build-isolation --editable .; \
	    status=$$?; wait $$dev && exit $$status
	$(PY) -m pip check
	@grep -qx "torch==$$($(PY) -c 'from importlib.metadata import version; print(version("torch").split("+")[0])')" \
	    requirements/torch.txt || { echo "make venv: torch is not the pinned version" >&2; exit 1; }
	@touch $@

demo: $(STAMP)  ## store a real dataset and train a network from it
	$(PY) examples/digits.py

test: $(STAMP)  ## run the tests; S3 is moto unless STORAGE_LOADER_TEST_S3_ENDPOINT names a server
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# What pip chooses depends on what is there: each of the two begins with nothing. Its pip is that of
# .venv, or installing one would take as long as all the rest.
test-newest: $(STAMP)  ## run the tests without frameworks, with the newest of everything: NEWEST_PYTHON=python3.13
	$(NEWEST_PYTHON) -m venv --clear --without-pip .venv-newest
	$(PY) -m pip --python .venv-newest install --no-compile -r requirements/bare.txt --editable .
	.venv-newest/bin/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

test-oldest: $(STAMP)  ## the same with the lowest versions that pyproject.toml admits
	python3.11 -m venv --clear --without-pip .venv-oldest
	.venv-oldest/bin/python tests/support/lowest.py aws >.venv-oldest/lowest.txt
	$(PY) -m pip --python .venv-oldest install --no-compile -c .venv-oldest/lowest.txt \
	    -r requirements/bare.txt --editable '.[aws]'
	.venv-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(STAMP)  ## run the benchmarks
	$(PY) -m benchmarks

s3:  ## start a real S3 server on this machine and print its settings: eval "$(make -s s3)"
	@$(PYTHON) tests/support/s3_server.py up
