# make serve | test | bench | bench-gate | lint | acceptance: each sets up .venv first; nothing else needs to be installed.
# ARGS is passed on:    make serve ARGS="--port 9000"    make test ARGS="tests/http -x"
# PYTHON chooses the interpreter .venv is made with:    make serve PYTHON=/usr/bin/python3.12

PYENV_ROOT ?= $(HOME)/.pyenv
# the newest first that all dependencies are used with daily; the patterns find interpreters pyenv holds but hides
CANDIDATES := $(foreach v,3.13 3.14 3.12,$(wildcard $(PYENV_ROOT)/versions/$(v).*/bin/python3) python$(v)) python3
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))
PYTHON ?= $(shell for p in $(CANDIDATES); do "$$p" -c '$(USABLE)' 2>/dev/null && echo "$$p" && break; done)

V := .venv
PIP_INSTALL := $(V)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all:
PYTEST := $(V)/bin/python -m pytest
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-header --no-annotate

.PHONY: serve test bench bench-gate lint acceptance lock clean
serve: $(V)/runtime.ok
	@$(V)/bin/python -m imp $(ARGS)

test: $(V)/dev.ok
	$(PYTEST) $(ARGS)

bench: $(V)/dev.ok
	$(PYTEST) bench $(ARGS)

# whether this tree is as fast as an earlier revision of it, which runs beside it
bench-gate: $(V)/dev.ok
	$(V)/bin/python -m bench.gate $(ARGS)

lint: $(V)/dev.ok
	$(V)/bin/ruff check .
	$(V)/bin/mypy

# One target a topic: tests/acceptance/test_TOPIC.py is `make acceptance-TOPIC`, and `make acceptance` is all of them.
TOPICS := $(patsubst tests/acceptance/test_%.py,acceptance-%,$(wildcard tests/acceptance/test_*.py))
acceptance: $(TOPICS)
acceptance-%: $(V)/dev.ok
	$(PYTEST) -s tests/acceptance/test_$*.py $(ARGS)

# What is installed, pinned by hash; the only targets that need uv. Commit the result.
lock:
	$(UV_COMPILE) pyproject.toml -o requirements.lock
	$(UV_COMPILE) pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	$(UV_COMPILE) pyproject.toml --extra cuda --group gpu -c requirements-dev.lock -o requirements-cuda.lock
	$(UV_COMPILE) --group build -o requirements-build.lock
	$(UV_COMPILE) tests/clients/agents/requirements.in -o tests/clients/agents/requirements.lock

clean:
	rm -rf $(V) tests/clients/node/node_modules tests/clients/agents/node_modules tests/clients/agents/.venv

$(V)/runtime.ok: requirements.lock
	@test -n "$(PYTHON)" || { echo "imp needs Python 3.12 or newer with its venv module, and found none: install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up $(V) with $(PYTHON)" >&2
	$(PYTHON) -m venv --clear $(V)
	$(PIP_INSTALL) -r requirements.lock
	@touch $@

$(V)/dev.ok: requirements-dev.lock requirements-cuda.lock $(V)/runtime.ok
	$(PIP_INSTALL) -r requirements-dev.lock -r requirements-cuda.lock
	@touch $@
