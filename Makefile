# Every command of the project; CI runs the same ones. `make help` lists them.

PYTHON ?= python3
# Further arguments for the tool a target runs, as in: make test ARGS="tests/ir -k parse"
ARGS ?=
# Processes that pytest spreads the tests over; 0 runs them in one.
JOBS ?= auto
# The revision that `make near` compares the checkout with.
SINCE ?= main
# Folder of what `make gpu` leaves.
OUT ?= build/gpu
# Folder of what `make lease` makes for GPUs that are elsewhere.
LEASE ?= build/lease
# The Python of `make gpu`: that of .venv where there is one, unless PYTHON is given.
GPU_PYTHON = $(if $(filter command line environment,$(origin PYTHON)),$(PYTHON),$(or $(wildcard .venv/bin/python),$(PYTHON)))

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
INSTALLED := .venv/.installed
INSTALLED_BENCH := .venv/.installed-bench
INSTALLED_RAY := .venv/.installed-ray
INSTALLED_OUTSIDE := .venv-outside/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo near test whole outside ray lint type golden fuzz answers bench gpu lease docs

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv and install stretto with its tools into it

demo: setup ## compile and run four models of the zoo against eager PyTorch
	$(BIN)/stretto demo $(ARGS)

near: setup ## run the tests near what was changed since main, or SINCE=REVISION
	$(BIN)/python tools/near.py --since $(SINCE) $(ARGS)

test: setup lint type ## lint, check types, run a fixed sample of all tests
	$(BIN)/pytest -n $(JOBS) $(ARGS)

whole: setup ## run every test and case
	$(BIN)/pytest -n $(JOBS) --whole $(ARGS)

outside: $(INSTALLED_OUTSIDE) ## run programs of outside packages (installs them first), write the table of benchmarks/results/README.md
	.venv-outside/bin/python -W ignore -m tests.outside.run $(ARGS)

ray: setup $(INSTALLED_RAY) ## run the tests of batchers on many machines, on a local cluster of Ray (installs it first)
	$(BIN)/pytest tests/batching/serving/test_many_machines.py $(ARGS)

lint: setup ## check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

type: setup ## check types
	$(BIN)/pyright

golden: setup ## rewrite the golden files from what the compiler prints now
	$(BIN)/pytest tests/golden --update-golden $(ARGS)

fuzz: setup ## try random functions and torch's own databases: make fuzz ARGS="--part functions --count 200"
	$(BIN)/python -m checks.fuzz $(ARGS)

# Databases on the interpreter, and as many random programs as take minutes.
ANSWERS := tests/golden/answers.jsonl.xz
answers: setup ## compare what the databases and random programs with fixed seeds give with what they gave
	$(BIN)/python -m checks.fuzz --count 0 --machines interpreter --part modules --part exportdb --part operators --against $(ANSWERS) $(ARGS)
	$(BIN)/python -m checks.fuzz --no-reduce --count 60 --seed 130000 --part python --against $(ANSWERS) $(ARGS)
	$(BIN)/python -m checks.fuzz --no-reduce --count 60 --seed 60000 --part functions --against $(ANSWERS) $(ARGS)
	$(BIN)/python -m checks.fuzz --no-reduce --count 30 --part sizes --against $(ANSWERS) $(ARGS)
	$(BIN)/python -m checks.fuzz --no-reduce --count 40 --part instances --against $(ANSWERS) $(ARGS)

bench: setup $(INSTALLED_BENCH) ## time the zoo against its peers (installs them first)
	$(BIN)/stretto bench $(ARGS)

gpu: ## check and measure on an NVIDIA GPU; needs no install: make gpu PYTHON=... OUT=folder
	PYTHONPATH=src $(GPU_PYTHON) -m benchmarks.gpu.lease --out $(OUT) $(ARGS)

lease: setup ## compile the programs of `make gpu` for an H100 and an H200, without a GPU
	PYTHONPATH=src $(BIN)/python -m benchmarks.gpu.lease --prepare $(LEASE) $(ARGS)

docs: setup ## check that the links in README.md and docs/ lead somewhere
	$(BIN)/pytest tests/test_docs.py $(ARGS)

$(INSTALLED): pyproject.toml constraints.txt
	[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv
	$(INSTALL) '.[dev,models]'
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	$(INSTALL) '.[bench,dev,models]'
	@touch $@

$(INSTALLED_RAY): $(INSTALLED)
	$(INSTALL) '.[dev,models,ray]'
	@touch $@

# The operators of torchaudio's wheel are built for CUDA: the package does without them, unless they are there and do not load.
$(INSTALLED_OUTSIDE): pyproject.toml constraints.txt
	[ -x .venv-outside/bin/pip ] || $(PYTHON) -m venv .venv-outside
	.venv-outside/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,models,outside]'
	find .venv-outside -path '*/torchaudio/lib/*.so' -delete
	@touch $@
