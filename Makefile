# Every target first brings .venv up to the lock files (gpuplane/run/install.py); a repeat costs nothing.
PYTHON ?= python3
PY := .venv/bin/python
# Processes of `make test`, and what it runs: make test TESTS=tests/unit/kube
WORKERS ?= 2
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help install install-dev run migrate migrations test test-explore attack-test check check-lint check-types check-floors check-django check-pages docs bench bench-cluster cluster-tools cluster-test cluster-up lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile

install:  ## the environment in .venv: locked packages, files of the pages
	@$(PYTHON) gpuplane/run/install.py base

install-dev:  ## the same with what tests and checks need
	@$(PYTHON) gpuplane/run/install.py dev

run: install  ## everything, embedded, with a simulated fleet; Ctrl-C stops it
	@exec $(PY) -m gpuplane.run

migrate: install  ## bring the database up to the models
	@$(PY) manage.py migrate

migrations: install-dev  ## write migrations for changed models
	@$(PY) manage.py makemigrations

test: install-dev  ## every test; pytest's summary closes the output
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

test-explore: install-dev  ## every Hypothesis test with new examples, for so long: make test-explore MINUTES=30
	@$(PY) -m tests.checks.explore $(or $(MINUTES),10) $(TESTS)

attack-test: install-dev  ## attacks on the running product while others use it (three minutes); or make attack-test TESTS="-k headers"
	@$(PY) -m pytest tests/attacks $(TESTS)

check: check-lint check-types check-floors check-django check-pages  ## everything but the tests; make -k check goes on after a failure

check-lint: install-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

check-types: install-dev
	@$(PY) -m mypy .

check-floors: install-dev
	@.venv/bin/lint-imports --no-logo

check-django: install-dev
	@$(PY) manage.py check --fail-level WARNING
	@$(PY) manage.py makemigrations --check --dry-run

check-pages: install-dev
	@$(PY) manage.py settings_table --check
	@$(PY) -m tests.checks.requirements_table --check
	@$(PY) -m tests.checks.javascript
	@$(PY) -m tests.checks.sizes

docs: install-dev  ## write the generated pages of docs/
	@$(PY) manage.py settings_table
	@$(PY) -m tests.checks.requirements_table --write

bench: install-dev  ## figures beside their floors
	@$(PY) -m tests.bench

bench-cluster: cluster-tools  ## pods per second on a real Kubernetes, beside other schedulers and the floor (over half an hour)
	@$(PY) -m tests.bench.cluster

cluster-tools: install-dev  ## build etcd, kube-apiserver, kube-scheduler and the like, once (Go; about eight minutes)
	@$(PY) -m tests.cluster.controlplane.tools

cluster-test: cluster-tools  ## every test on a real Kubernetes, on loopback; or make cluster-test TESTS=tests/cluster/test_faults.py
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile $(or $(TESTS),tests/cluster)

cluster-up: cluster-tools  ## the same cluster to play with; Ctrl-C stops it
	@exec $(PY) -m tests.cluster.controlplane

lock: install-dev  ## compile requirements/*.txt and package-lock.json again
	@cd requirements && ../$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url base.in -o base.txt
	@cd requirements && ../$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url dev.in -o dev.txt
	@npm install --package-lock-only --ignore-scripts --no-audit --no-fund

clean:  ## forget the environment and the caches, keep var/
	@rm -rf .venv node_modules static/vendor .mypy_cache .ruff_cache .pytest_cache
