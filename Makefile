# Every target first installs what the lock files list into .venv (gpuplane/run/install.py); this is a no-op when it is
# up to date.
PYTHON ?= python3
PY := .venv/bin/python
# Number of test processes, and the tests to run: make test TESTS=tests/unit/kube
WORKERS ?= 3
TESTS ?=

.DEFAULT_GOAL := help
.PHONY: help install install-dev run migrate migrations test test-explore attack-test check check-lint check-types \
	check-floors check-django check-pages docs bench bench-cluster cluster-tools cluster-test cluster-up runtime-tools \
	runtime-test images image-test lock clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile

install:  ## install locked packages into .venv, and the frontend files
	@$(PYTHON) gpuplane/run/install.py base

install-dev:  ## the same, with the packages for tests and checks
	@$(PYTHON) gpuplane/run/install.py dev

run: install  ## start everything, embedded, with a simulated fleet; Ctrl-C stops it
	@exec $(PY) -m gpuplane.run

migrate: install  ## apply migrations to the database
	@$(PY) manage.py migrate

migrations: install-dev  ## create migrations for changed models
	@$(PY) manage.py makemigrations

# Write bytecode, whatever the environment says: otherwise each worker compiles every test again.
test: export PYTHONDONTWRITEBYTECODE =
test: install-dev  ## run the tests; pytest's summary ends the output
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

test-explore: install-dev  ## run the Hypothesis tests with new examples: make test-explore MINUTES=30
	@$(PY) -m tests.checks.explore $(or $(MINUTES),10) $(TESTS)

attack-test: install-dev  ## attack a running gpuplane while others use it (3 min); TESTS="-k headers" for some
	@$(PY) -m pytest tests/attacks $(TESTS)

check: check-lint check-types check-floors check-django check-pages  ## run all checks; -k goes on after a failure

check-lint: install-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m tests.checks.scripts

check-types: install-dev
	@$(PY) -m mypy .

check-floors: install-dev
	@.venv/bin/lint-imports --no-logo

check-django: install-dev
	@$(PY) manage.py check --fail-level WARNING
	@$(PY) manage.py makemigrations --check --dry-run

check-pages: install-dev
	@$(PY) manage.py settings_table --check
	@$(PY) manage.py recognised_names --check
	@$(PY) -m tests.checks.requirements_table --check
	@$(PY) -m tests.checks.sizes

docs: install-dev  ## write the generated pages of docs/
	@$(PY) manage.py settings_table
	@$(PY) manage.py recognised_names
	@$(PY) -m tests.checks.requirements_table --write

bench: install-dev  ## run the benchmarks and print each figure with its lower bound
	@$(PY) -m tests.bench

bench-cluster: cluster-tools  ## compare pods per second with other schedulers on a real Kubernetes (over half an hour)
	@$(PY) -m tests.bench.cluster

cluster-tools: install-dev  ## build etcd, kube-apiserver, Karpenter and others, once (needs Go; 10 min)
	@$(PY) -m tests.cluster.controlplane.tools

cluster-test: cluster-tools  ## run the tests on a real Kubernetes, on loopback; TESTS=FILE for some
	@$(PY) -m pytest -n 2 --dist loadfile $(or $(TESTS),tests/cluster)

runtime-tools: install-dev  ## build llama-cpp-python, once (needs cmake and a C++ compiler; 6 min)
	@$(PY) -m tests.runtime.tools

runtime-test: runtime-tools  ## run the tests of slots with a real runtime, llama.cpp
	@$(PY) -m pytest $(or $(TESTS),tests/runtime)

images: install-dev  ## build the images with buildah, as root on Debian (8 min, then less)
	@$(PY) -m tests.images.tools

image-test: images  ## build and test the images: what is inside, and how their programs start
	@$(PY) -m pytest $(or $(TESTS),tests/images)

cluster-up: cluster-tools  ## start that cluster for manual use; Ctrl-C stops it
	@exec $(PY) -m tests.cluster.controlplane

COMPILE = --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url
lock: install-dev  ## update requirements/*.txt and package-lock.json
	@cd requirements && ../$(PY) -m uv pip compile $(COMPILE) base.in -o base.txt
	@cd requirements && ../$(PY) -m uv pip compile $(COMPILE) dev.in -o dev.txt
	@cd requirements && ../$(PY) -m uv pip compile $(COMPILE) -c base.txt agent.in -o agent.txt
	@cd requirements && ../$(PY) -m uv pip compile $(COMPILE) -c base.txt runner.in -o runner.txt
	@cd requirements && ../$(PY) -m uv pip compile $(COMPILE) runtime.in -o runtime.txt
	@npm install --package-lock-only --ignore-scripts --no-audit --no-fund

clean:  ## remove the environment and the caches; keep var/
	@rm -rf .venv node_modules static/vendor .mypy_cache .ruff_cache .pytest_cache
