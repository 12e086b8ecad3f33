# `make serve`, `make demo` and `make test` do everything on a machine with Python 3.11 and make; each
# builds .venv when it is not there, and adds what this machine can run models with. Nothing is
# compiled unless nothing prebuilt fits.

VENV := .venv
# A virtual environment names its folder in many files: in a clone that was moved, none of them works.
ifneq ($(shell cat $(VENV)/.place 2>/dev/null || echo "$(CURDIR)"),$(CURDIR))
$(info This clone was moved here: $(VENV) is built again.)
$(shell rm -rf $(VENV))
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$each && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup llama demo serve cluster test check clients lint types sim plant bench docs clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.model ## build .venv, and fetch the embedded model

demo: $(VENV)/.model ## stream eight prompts side by side from the embedded model
	@$(BIN)/jitney demo

serve: $(VENV)/.model ## serve the embedded model on 127.0.0.1:8000; ARGS="--port 9000" and the like
	@$(BIN)/jitney serve $(ARGS)

cluster: $(VENV)/.model $(VENV)/.cluster ## serve the embedded model from two replicas on Ray; a request outlives its replica
	@$(BIN)/jitney serve --replicas 2 $(ARGS)

test: $(VENV)/.model $(VENV)/.dev $(VENV)/.every $(VENV)/.data $(VENV)/.torch ## lint, types, layers and every test
	@$(BIN)/python -m scripts.check $(ARGS)

check: $(VENV)/.model $(VENV)/.dev $(VENV)/.every ## while you work: lint, types, layers, style, unit and property tests, 60 seeds
	@$(BIN)/python -m scripts.check --quick $(ARGS)

clients: $(VENV)/.model $(VENV)/.dev ## run real clients against the server; needs node and package registries
	@$(BIN)/python -m tests.clients $(ARGS)

lint: $(VENV)/.dev ## ruff, format and lint
	@$(BIN)/python -m scripts.check --only lint

types: $(VENV)/.dev ## mypy --strict
	@$(BIN)/python -m scripts.check --only types

sim: $(VENV)/.dev ## run the simulation; ARGS="--seed N" replays one seed
	@$(BIN)/python -m tests.simulation $(ARGS)

plant: $(VENV)/.dev ## plant known bugs and see that each one is caught
	@$(BIN)/python -m tests.simulation.plant $(ARGS)

bench: $(VENV)/.model $(VENV)/.every $(VENV)/.bench ## measure batch sizes, overhead, stalls, strategies and peers, into build/bench; about twenty minutes
	@$(BIN)/jitney bench scaling --runs 1 -o build/bench
	@$(BIN)/jitney bench overhead -o build/bench
	@$(BIN)/jitney bench stalls --runs 1 --input-len 1000 -o build/bench
	@$(BIN)/jitney bench strategies --runs 1 --num-prompts 32 -o build/bench
	@$(BIN)/python -m benchmarks.compare --runs 1 --clients 8 -o build/bench

docs: $(VENV)/.dev ## write the pages that are made from the source
	@$(BIN)/python -m scripts.write_docs

llama: $(VENV)/.packages ## add llama.cpp, for models that OpenVINO does not know; ARGS=--compile compiles it
	@$(BIN)/python -m scripts.set_up --llama $(ARGS)

clean: ## remove .venv and what tools left; compiled wheels and models stay in the cache folder
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache src/*.egg-info
	find src tests scripts -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "jitney needs Python 3.11 or newer on the PATH."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Python cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; \
		exit 1; }
	@echo "$(CURDIR)" > $(VENV)/.place

# Without OpenVINO only where it has no package for this machine; other failures are shown.
$(VENV)/.packages: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Python packages"
	@$(PIP) install -qq -c constraints.txt -e '.[openvino]' 2> $(VENV)/packages.log || { \
		grep -q "No matching distribution found for openvino" $(VENV)/packages.log \
		|| { cat $(VENV)/packages.log; exit 1; }; \
		$(PIP) install -qq -c constraints.txt -e .; }
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.packages
	@echo "Installing what the tests need"
	@$(PIP) install -qq -c constraints.txt -e '.[dev,otel]'
	@$(PIP) install -qq -c constraints.txt --only-binary :all: xllamacpp 2> $(VENV)/xllamacpp.log \
		|| echo "xllamacpp has no package for this machine; its test is skipped."
	@touch $@

$(VENV)/.backend: $(VENV)/.packages scripts/set_up.py
	@$(BIN)/python -m scripts.set_up
	@touch $@

$(VENV)/.every: $(VENV)/.packages scripts/set_up.py
	@$(BIN)/python -m scripts.set_up --every
	@touch $@

$(VENV)/.model: $(VENV)/.backend
	@$(BIN)/jitney pull
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.packages
	@echo "Installing what the benchmarks need"
	@$(PIP) install -qq -c constraints.txt -e '.[bench]'
	@touch $@

# Without Ray only where it has no package for this machine; other failures are shown.
$(VENV)/.cluster: pyproject.toml constraints.txt | $(VENV)/.packages
	@echo "Installing Ray (about 500 MB)"
	@$(PIP) install -qq -c constraints.txt -e '.[cluster]' 2> $(VENV)/cluster.log || { \
		grep -q "No matching distribution found for ray" $(VENV)/cluster.log \
		|| { cat $(VENV)/cluster.log; exit 1; }; \
		echo "Ray has no package for this machine; jitney serve --replicas does not work here."; }
	@touch $@

# This spelling takes the build for the CPU. Without torch only where it has no package for this
# machine; other failures are shown.
$(VENV)/.torch: pyproject.toml constraints.txt | $(VENV)/.packages
	@echo "Installing PyTorch for the CPU (about 200 MB)"
	@$(PIP) install -qq torch==2.13.0 -c constraints.txt 2> $(VENV)/torch.log \
		&& $(PIP) install -qq -c constraints.txt -e '.[torch]' transformers || { \
		grep -q "No matching distribution found for torch" $(VENV)/torch.log \
		|| { cat $(VENV)/torch.log; exit 1; }; \
		echo "PyTorch has no package for this machine; its tests are skipped."; }
	@$(PIP) install -qq -c constraints.txt triton 2> $(VENV)/triton.log \
		|| echo "Triton has no package for this machine; the tests of the kernels are skipped."
	@touch $@

# Without Ray Data only where it has no package for this machine; other failures are shown.
$(VENV)/.data: pyproject.toml constraints.txt | $(VENV)/.cluster
	@echo "Installing Ray Data (about 200 MB)"
	@$(PIP) install -qq -c constraints.txt -e '.[data]' 2> $(VENV)/data.log || { \
		grep -q "No matching distribution found" $(VENV)/data.log \
		|| { cat $(VENV)/data.log; exit 1; }; \
		echo "Ray Data has no package for this machine; its test is skipped."; }
	@touch $@
