# make demo   train, prune and compare a small network; writes runs/demo/report.html
# make test   lint, format check, types, tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two test processes by default; each uses one thread, so that they do not fight over the cores.
JOBS   ?= 2
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint format types unit slow coverage docs dist clean help
help:
	@echo "make demo    train, prune and compare a small network (under 3 minutes), report in runs/demo"
	@echo "make test    lint + format check + types + tests"
	@echo "make lint    ruff check, ruff format --check"
	@echo "make format  let ruff mend what it can"
	@echo "make types   mypy"
	@echo "make unit    the tests alone"
	@echo "make slow    tests that take long: machines of a cluster that die, the paper's scripts, the demo"
	@echo "make coverage  the tests, with the lines that they do not reach (half as long again)"
	@echo "make docs    the site, with the API from the docstrings, in build/site"
	@echo "make dist    the source distribution and the wheel, in dist"
	@echo "make clean   remove caches, build products and runs/demo (make clean-all: .venv too)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "The pinned environment needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# PyTorch goes first and alone: whatever build is installed then (CPU or CUDA), the rest accepts it.
# The package itself comes without build isolation and without dependencies, so that nothing is fetched twice.
$(STAMP): requirements/torch.txt requirements/vision.txt requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "installing the pinned packages into $(VENV) (the first time takes a few minutes)"
	@$(PIP) -r requirements/torch.txt
	@$(PIP) -r requirements/vision.txt
	@$(PIP) -r requirements/dev.txt
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m lcprune demo --out runs/demo --force

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

# Compiled files are kept: otherwise every process that a test starts compiles the package again.
TESTS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

unit: $(STAMP)
	$(TESTS) -m "not slow" $(ARGS)

slow: $(STAMP)
	$(TESTS) -m slow $(ARGS)

coverage:
	$(MAKE) unit ARGS="--cov --cov-report=term $(ARGS)"

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# Without what earlier builds left: setuptools would pack it again.
dist: $(STAMP)
	rm -rf dist build/lib src/*.egg-info
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" >/dev/null
	@ls dist

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov runs/demo
	find src tests benchmarks docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-all
clean-all: clean
	rm -rf $(VENV)
