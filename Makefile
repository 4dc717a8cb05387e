# Two commands on a fresh machine: `make reproduce` and `make test`. Both need only Python 3.11 or 3.12.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_PROCESSES ?= 2

.PHONY: reproduce test test-browser lint bench record defects wheel clean

reproduce: $(VENV)/.installed
	$(BIN)/ematrace reproduce

# Two at a time take two thirds of the time on two cores; TEST_PROCESSES=1 is kinder to a busy machine. Bytecode is kept
# even where the environment says otherwise: the tests start dozens of processes that would each compile the package.
test: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

# The page in a real browser, by Lighthouse and axe; needs any Chromium, Node and npm, and says so where one is missing.
test-browser: $(VENV)/.installed-dev
	$(BIN)/python scripts/check_page.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.installed-bench
	$(BIN)/ematrace bench

# The runs behind results/: more seeds, every experiment on drawn grammars. Hours on two cores, 20 minutes on 16.
record: $(VENV)/.installed
	$(BIN)/python scripts/record.py

# Plants defects in copies of the code and checks that the tests notice every one.
defects: $(VENV)/.installed-dev
	$(BIN)/python scripts/plant_defects.py

# Builds the wheel, installs it into an empty environment away from the checkout, and runs it there.
wheel: $(VENV)/.installed-dev
	$(BIN)/python scripts/check_wheel.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("ematrace needs Python 3.11 or 3.12, found " + sys.version.split()[0] + "; try make PYTHON=python3.11") if not (3, 11) <= sys.version_info[:2] <= (3, 12) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) build dist report.html results/local
