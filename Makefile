# Every target sets itself up: all that is needed is Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-quick coverage lint docs docs-serve tables dist fuzz flower-versions clean

demo: $(VENV)/.sim
	$(BIN)/fedcohort demo

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

# For the loop of writing and trying, below two minutes on two cores: no process, browser, training
# of minutes or tutorial. Folders, files and tests that need one of these are named here, or marked
# `slow`.
SLOW := tests/e2e tests/flower tests/nvflare tests/fuzz tests/simulation tests/training tests/studies \
	tests/report/test_browser.py tests/docs/test_explorer.py tests/docs/test_tutorials.py
SLOW_TESTS := tests/federation/test_skew.py::test_the_default_size_is_the_largest_feasible_one \
	tests/dpp/test_elementary.py::test_large_spectrum \
	tests/metrics/test_convergence.py::test_the_interval_covers_the_truth
test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" $(addprefix --ignore=,$(SLOW)) \
		$(addprefix --deselect=,$(SLOW_TESTS))

# Which lines of src no test reaches; processes that tests start are not counted.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

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
	    PYTHONPATH=$(VENV)/flwr-$$version:$$PYTHONPATH $(BIN)/python -m pytest tests/flower tests/engines \
	        --ignore tests/flower/test_processes.py --ignore tests/flower/test_apps.py || exit 1; \
	done

# The site: tutorials are run when they or the package changed, warnings are errors, links are checked.
TUTORIALS := $(patsubst docs/tutorials/%.py,build/tutorials/%.md,$(wildcard docs/tutorials/*.py))
docs: $(VENV)/.docs $(TUTORIALS) build/explorer.html
	$(BIN)/python docs/tools/tables.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/tools/check_site.py build/site
	@echo "The site is in build/site: open build/site/index.html; its search works where it is served, as by make docs-serve"

docs-serve: $(VENV)/.docs $(TUTORIALS) build/explorer.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

build/tutorials/%.md: docs/tutorials/%.py docs/tools/tutorials.py $(shell find src -name '*.py') | $(VENV)/.docs
	$(BIN)/python docs/tools/tutorials.py $< --to build/tutorials

build/explorer.html: docs/tools/explorer.py $(shell find src -name '*.py') $(wildcard src/fedcohort/report/templates/*) | $(VENV)/.docs
	$(BIN)/python $<

# Tables of pages anew from the files of their numbers.
tables:
	$(PYTHON) docs/tools/tables.py

dist: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m build --outdir dist

# For a night: 240,000 inputs that nobody would send, by two engines (CASES= for another number).
CASES ?= 240000
fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python tests/fuzz/run.py --cases $(CASES)

# The stamps are made anew when what they were installed from changes.
$(VENV)/.sim $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist
