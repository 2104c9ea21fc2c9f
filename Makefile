# `make demo` and `make test` set themselves up: all they need is Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint fuzz flower-versions clean

demo: $(VENV)/.sim
	$(BIN)/fedcohort demo

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The Flower tests that start no process, with other versions of Flower where they install.
FLOWERS ?= 1.40.0 1.42.0
flower-versions: $(VENV)/.dev
	for version in $(FLOWERS); do \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	        --target $(VENV)/flwr-$$version flwr==$$version || continue; \
	    PYTHONPATH=$(VENV)/flwr-$$version $(BIN)/python -m pytest tests/flower tests/engines \
	        --ignore tests/flower/test_processes.py --ignore tests/flower/test_apps.py || exit 1; \
	done

# For a night: 240,000 inputs that nobody would send, by two engines (CASES= for another number).
CASES ?= 240000
fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python tests/fuzz/run.py --cases $(CASES)

# The stamps are made anew when what they were installed from changes.
$(VENV)/.sim $(VENV)/.dev: $(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist
