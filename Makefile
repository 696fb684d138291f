# Two commands are all a new user needs: `make quickstart` and `make test`.
# Needs Python >= 3.10 and a package index. PIP_ARGS is passed to pip, for example
#   make quickstart PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: the cores are shared out between trials, not between a trial's threads.
export OMP_NUM_THREADS ?= 1
# Hundreds of processes of the tests would each compile all they import.
unexport PYTHONDONTWRITEBYTECODE

# `make benchmarks` needs a checkout of HydraGNN, a Python that has DeepHyper 0.13, one that has
# schnetpack and mace-torch, and the directory that benchmarks/fetch.sh has filled; BENCH may name
# another Python that has all packages.
BENCH ?=
RESULTS := docs/results
BENCHMARKS := store models steps accuracy peers_accuracy ensemble outside search_quality execution placement scale

.PHONY: help quickstart test test-random test-gpu test-slow test-slurm test-drills style types lint format docs site clean benchmarks \
	benchmark-gpu $(BENCHMARKS:%=benchmark-%)

help:
	@echo "make quickstart   install, then run the whole campaign on generated data (9 minutes)"
	@echo "make test         lint, types and tests (10 minutes at most)"
	@echo "make test-random  properties with new examples; ROOM=placement those of one room"
	@echo "make lint         lint and types alone"
	@echo "make test-slow    campaigns killed at many moments, every environment, installations (30 minutes at most)"
	@echo "make test-gpu     what only an accelerator can show (10 minutes); DEVICE=cpu tries it without one"
	@echo "make test-slurm   campaigns on a private Slurm of this machine's own, as root (about 10 minutes)"
	@echo "make test-drills  what goes wrong on a cluster for a while, on the same private Slurm"
	@echo "make format       let ruff rewrite the sources"
	@echo "make benchmarks HYDRAGNN=CHECKOUT DEEPHYPER=PYTHON PEERS=PYTHON DATA=DIRECTORY"
	@echo "                  every table of docs/benchmarks.md but gpu's (8 hours); benchmark-NAME one of them"
	@echo "make docs         write the generated tables and pictures of the pages"
	@echo "make site         build the site of the pages and the API reference, site/index.html"
	@echo "make clean        remove the quickstart's run and all caches, keep the environment"

quickstart: $(VENV)/installed
	$(BIN)/hydragnn-flow run configs/quickstart.yaml --site local

# Types are checked beside the tests, and what is wrong with them is printed after the tests' summary.
test: style
	@$(BIN)/mypy >$(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest; tests=$$?; \
	wait $$types; types=$$?; echo "mypy:"; cat $(VENV)/types.log; \
	exit $$((tests || types))

test-random: $(VENV)/installed
	PYTHONHASHSEED=random $(BIN)/python -m pytest --hypothesis-profile=random -m "hypothesis and not slurm and not gpu" tests/$(ROOM)

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -m "slow and not slurm"

test-gpu: $(VENV)/installed
	$(BIN)/python -m pytest -n 0 -m gpu tests/gpu $(if $(DEVICE),--device $(DEVICE))

test-slurm: $(VENV)/installed
	$(BIN)/python -m pytest -m "slurm and not slow" tests/slurm

test-drills: $(VENV)/installed
	$(BIN)/python -m pytest -m "slurm and slow" tests/slurm

lint: style types

style: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/floors.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python docs/error_bars.py
	$(BIN)/python docs/rungs.py

site: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

benchmarks: $(BENCHMARKS:%=benchmark-%)
	$(or $(BENCH),$(BIN)/python) benchmarks/page.py

benchmark-store benchmark-models: benchmark-%: $(if $(BENCH),,$(VENV)/bench)
	$(or $(BENCH),$(BIN)/python) benchmarks/$*.py --hydragnn $(call given,HYDRAGNN) --json $(RESULTS)/$*.json

benchmark-accuracy: $(if $(BENCH),,$(VENV)/bench)
	$(or $(BENCH),$(BIN)/python) benchmarks/accuracy.py --data $(call given,DATA) --hydragnn $(call given,HYDRAGNN) \
		--json $(RESULTS)/accuracy.json

benchmark-peers_accuracy: $(if $(BENCH),,$(VENV)/installed)
	$(or $(BENCH),$(BIN)/python) benchmarks/peers_accuracy.py --data $(call given,DATA) --peers $(call given,PEERS) \
		--json $(RESULTS)/peers_accuracy.json

benchmark-ensemble benchmark-outside: benchmark-%: $(if $(BENCH),,$(VENV)/installed)
	$(or $(BENCH),$(BIN)/python) benchmarks/$*.py --data $(call given,DATA) --json $(RESULTS)/$*.json

benchmark-search_quality benchmark-execution: benchmark-%: $(if $(BENCH),,$(VENV)/installed)
	$(or $(BENCH),$(BIN)/python) benchmarks/$*.py --deephyper $(call given,DEEPHYPER) --json $(RESULTS)/$*.json

benchmark-steps benchmark-placement benchmark-scale: benchmark-%: $(if $(BENCH),,$(VENV)/installed)
	$(or $(BENCH),$(BIN)/python) benchmarks/$*.py --json $(RESULTS)/$*.json

benchmark-gpu: $(VENV)/installed
	$(BIN)/python benchmarks/gpu.py $(if $(HYDRAGNN),--hydragnn $(HYDRAGNN)) --json $(RESULTS)/gpu.json

given = $(or $($1),$(error write $1=..., see `make help`))

# torch-scatter is built against the torch that is there.
$(VENV)/bench: $(VENV)/installed
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e ".[bench]"
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt setuptools wheel ninja
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt --no-build-isolation torch-scatter
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	@# torch first and pinned: an unpinned requirement elsewhere must not choose another build
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt torch
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf runs/quickstart site .pytest_cache .mypy_cache .ruff_cache .hypothesis
