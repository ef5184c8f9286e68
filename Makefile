# Everything is made from here: `make demo` and `make test` set up what they need by themselves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Errors only: setuptools warns of every editable installation.
INSTALL := $(BIN)/python -m pip install --quiet --quiet
# One more than there are processors: tests wait for processes and servers half of their time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
ARGS ?=
# A test that hangs is named and ended, with the process that it is in; the others go on.
WITHIN := --timeout=300 --timeout-method=thread
# Of `make chaos`: how long faults happen, and the seed of a run to repeat.
SECONDS ?= 300
SEED ?=

# pip says what went wrong, and no more.
export PIP_QUIET := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The value is pip's way to say --no-compile: most of what is installed is never imported.
export PIP_NO_COMPILE := 0

# Whatever the environment says, compiled code is kept: else each of the hundreds of processes that
# tests and demo start compiles all that it imports, three times the work of its start. Not in the
# tree, where some do not want it.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.DEFAULT_GOAL := help
.SILENT: $(VENV)/installed
.PHONY: help demo demo-all serve test test-all check lint types layers migrations metrics map docs bench bench-batches bench-peers bench-growth bench-notifications bench-spark chaos stop clean bench-http package pairs projects

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

$(VENV)/installed: setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; say which: make PYTHON=/path/to/python"; exit 1; }
	echo "Setting up $(VENV) with all that is needed, once: a minute or so"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade "pip>=25.1"
	$(INSTALL) --editable ".[all]" --group test
	@touch $@

$(VENV)/checkers: $(VENV)/installed
	$(INSTALL) "ruff>=0.17,<0.18" "mypy>=2.4,<3" "django-stubs>=6.1,<7" \
		"import-linter>=2.16,<3" types-croniter
	@touch $@

demo: $(VENV)/installed ## a shop with the admin live: a worker is killed, everything is checked; about a minute
	$(BIN)/python manage.py demo $(ARGS)

demo-all: $(VENV)/installed ## the shop, the job API, notifications and Spark; about three minutes
	$(BIN)/python manage.py demo all $(ARGS)

serve: $(VENV)/installed ## the demo, then workers and the admin until Ctrl-C
	$(BIN)/python manage.py demo --serve $(ARGS)

test: $(VENV)/installed ## the tests, on a PostgreSQL that starts by itself
	$(BIN)/python -m pytest -n $(JOBS) -m "not long" $(WITHIN) $(ARGS)

pairs: $(VENV)/installed ## short tests on further versions of Python, Django and psycopg, and the admin's layout on each Django
	JOBS=$(JOBS) $(BIN)/python .ci/pairs.py

test-all: $(VENV)/installed ## all tests: adds soaks, clusters, long kills, every plan, and five times the examples
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: lint types layers migrations ## what else must be green

lint: $(VENV)/checkers ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/checkers ## mypy --strict
	$(BIN)/mypy

layers: $(VENV)/checkers ## import-linter
	$(BIN)/lint-imports

metrics: $(VENV)/installed ## lines of each package, and the figures of docs/architecture.md
	$(BIN)/python -m tests.support.metrics

map: $(VENV)/installed ## the tests of each line of the contract, in docs/internals/coverage.md
	$(BIN)/python -m tests.support.contract_map

migrations: $(VENV)/installed ## no model change without its migration
	$(BIN)/python manage.py makemigrations --check --dry-run

docs: $(VENV)/installed ## the documentation, as HTML
	$(INSTALL) --group docs
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

$(VENV)/packagers: $(VENV)/installed
	$(INSTALL) --group package
	@touch $@

package: $(VENV)/packagers ## the sdist and the wheel in dist, and whether they are complete
	rm -rf dist django_delayed_queue.egg-info
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/pyroma --min 10 dist/*.tar.gz
	$(BIN)/python .ci/contents.py

bench: $(VENV)/installed ## every call beside bare SQL
	$(BIN)/python -m benchmarks $(ARGS)

$(VENV)/bench: $(VENV)/installed
	$(INSTALL) --group bench
	@touch $@

bench-peers: $(VENV)/bench ## the worker beside other queues; about 25 minutes
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-batches: $(VENV)/bench ## batch handlers beside pg-boss, and what members of batches cost
	$(BIN)/python -m benchmarks.batch_handlers $(ARGS)
	$(BIN)/python -m benchmarks.batches $(ARGS)

bench-growth: $(VENV)/bench ## millions of messages, and a snapshot that another session holds
	$(BIN)/python -m benchmarks.growth $(ARGS)
	$(BIN)/python -m benchmarks.held_snapshot $(ARGS)

bench-notifications: $(VENV)/bench ## the dispatcher with providers that take 100 ms
	$(BIN)/python -m benchmarks.notifications $(ARGS)

bench-http: $(VENV)/bench ## jobs and callbacks over HTTP, uvicorn and gunicorn
	$(BIN)/python -m benchmarks.http $(ARGS)
	$(BIN)/python -m benchmarks.callbacks $(ARGS)

bench-spark: $(VENV)/bench ## the data source for Spark beside COPY and JDBC, on one server
	$(BIN)/python -m benchmarks.spark $(ARGS)

chaos: $(VENV)/installed ## workers under random faults, then the fault tests many times over
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	CHAOS_ROUNDS=20 HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest \
		tests/queue/contract/test_state_machine.py tests/*/faults -n $(JOBS) $(ARGS)
	CHAOS_ROUNDS=20 $(BIN)/python -m pytest tests/spark/source/test_leases_interleaved.py $(ARGS)

$(VENV)/themes: $(VENV)/installed
	$(INSTALL) --group projects
	@touch $@

projects: $(VENV)/themes ## the package in projects of many configurations; writes docs/guides/configurations.md
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python -m tests.projects.running

stop: $(VENV)/installed ## stop the PostgreSQL servers that demo and tests left running
	$(BIN)/python manage.py queuedb stop
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python manage.py queuedb stop

clean: ## remove the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache docs/_build dist
