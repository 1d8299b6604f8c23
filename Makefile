# kvrouter: `make help` lists the targets. Needs make and a Python of 3.11 or newer, nothing else.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPOSE ?= docker compose
PROFILE ?=
N ?= 5000
MINUTES ?= 10
SOAK_MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help install demo test test-vllm fuzz check audit fix e2e bench loadtest compare overload chaos soak up down lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create .venv and install kvrouter with every extra, from the hash-locked requirements.lock

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "kvrouter needs Python 3.11 or newer as '$(PYTHON)'; name another one: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: install ## 2 prefill + 2 decode simulated engines and the router on 127.0.0.1:$(PORT)
	@$(BIN)/kvrouter demo --port $(PORT)

test: install ## everything that needs no container and no real vLLM
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/unit tests/contract tests/e2e tests/field

e2e: install ## the end-to-end tests alone
	$(BIN)/python -m pytest tests/e2e

test-vllm: install ## against real vLLM servers on the CPU: the core set, or all of it with FULL=1
	$(BIN)/python -m tests.real_vllm.build
	$(BIN)/python -m pytest tests/real_vllm

fuzz: install ## bad input of every kind, N of them (5000; nightly: N=100000 FUZZ_RANDOM=1)
	FUZZ_EXAMPLES=$(N) $(BIN)/python -m pytest tests/fuzz

check: install ## format, lint, types, layers and what no file may name
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit/project

audit: install ## known vulnerabilities of the locked dependencies, as PyPI tells them
	@$(BIN)/python .ci/audit.py requirements.lock

fix: install ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## hot-path and index benchmarks
	$(BIN)/python -m loadtest.bench

loadtest: install ## headless locust against the demo, which is started first when nothing listens on $(PORT)
	$(BIN)/python -m loadtest.run --port $(PORT) $(if $(PROFILE),--profile $(PROFILE))

compare: install ## cache-aware routing against round robin, by locust on four simulated engines
	$(BIN)/python -m loadtest.compare --demand-ratio 0.5 --demand-spread 1.5

chaos: install ## engines, Redis and routers hurt under load for MINUTES=10; fails when a promise breaks
	$(BIN)/python -m loadtest.chaos --minutes $(MINUTES)

soak: install ## steady load for SOAK_MINUTES=30; fails when the router's memory grows with it
	$(BIN)/python -m loadtest.soak --minutes $(SOAK_MINUTES)

overload: install ## three times what simulated engines can do, from three tenants in two priorities, on 1 and 2 routers
	$(BIN)/python -m loadtest.overload

up: ## the compose cluster: redis, router, 2 prefill and 2 decode simulated engines
	$(COMPOSE) up --detach --build --wait

down: ## stop the compose cluster and forget it
	$(COMPOSE) down --volumes --remove-orphans

lock: install ## resolve the dependencies anew into both lock files
	$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 \
	  --custom-compile-command 'make lock' --all-extras --group build pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 \
	  --custom-compile-command 'make lock' --constraint requirements.lock --group build pyproject.toml --output-file deploy/requirements.lock
	@touch $(INSTALLED)

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
