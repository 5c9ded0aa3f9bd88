# Each target sets itself up: a virtual environment in .venv with the pinned packages of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-browser check format clean
.DEFAULT_GOAL := test

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/ready  ## train a Memformer and the same model without memory on digits, side by side
	$(BIN)/memformer demo digits

# one thread a process: two busy processes with two threads each slow one another several times over
test: .venv/ready  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

.venv/browser: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	touch $@

CHROMIUM ?= /usr/bin/chromium

$(CHROMIUM):
	@echo "chromium is not there: installing Debian's"
	@(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null \
	    || (echo "make test-browser needs a chromium: install it, or give the path of one as CHROMIUM=..."; exit 1)

test-browser: .venv/browser $(CHROMIUM)  ## the page in a real browser, headless; installs Debian's where it is missing
	OMP_NUM_THREADS=1 CHROMIUM=$(CHROMIUM) $(BIN)/python -m pytest -o addopts=-ra tests/browser $(ARGS)

check: .venv/ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove everything that the other targets made
	rm -rf .venv runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
