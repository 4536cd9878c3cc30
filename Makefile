# Every command a person types; `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
# default (SmolLM2-135M-Instruct), a local Hugging Face folder, or a hub id.
MODEL ?= default
PROMPT ?= What is the capital of France?
LISTEN ?= 127.0.0.1:50051
# Extra flags: for the nanoserve command, the servers, pytest.
ARGS ?=
WORKER_ARGS ?=
SCHEDULER_ARGS ?=
# Of a soak's faults and requests; empty draws one.
SEED ?=
PYTEST_ARGS ?=
# Test processes: twice what two cores are busy with, since tests wait for much. Each may hold a
# model in memory.
JOBS ?= 4

# Given to the shell by the environment, as typed: make would expand its dollars and the
# shell its quotes.
export NANOSERVE_PROMPT := $(value PROMPT)

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The last file that the compiler writes stands for all.
STUBS := protos/nanoserve/v1/worker_pb2_grpc.py
LOCAL = $(BIN)/python -m deploy.local
SERVER_FLAGS = --worker-args="$(WORKER_ARGS)" --scheduler-args="$(SCHEDULER_ARGS)"
# Prints the model's folder, getting the model first if need be.
FIND_MODEL = model="$$($(BIN)/python -m deploy.model.fetch --model '$(MODEL)')"

.DEFAULT_GOAL := help
.PHONY: help install protos model run chat serve top test test-containers lint format types loadtest secrets soak bench-cpu bench-split bench-batching bench-overload bench-gpu bench-profile wheel clean
.DELETE_ON_ERROR:

help: ## List the targets
	@echo "Usage: make TARGET [VARIABLE=value ...]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r target text; do printf '  %-15s %s\n' "$$target" "$$text"; done
	@echo "Variables: PYTHON VENV MODEL PROMPT LISTEN ARGS WORKER_ARGS SCHEDULER_ARGS" \
		"SEED PYTEST_ARGS JOBS"

install: $(INSTALLED) ## Make the virtual environment (VENV) with all that is needed

$(INSTALLED): pyproject.toml setup.py deploy/install.py
	@$(PYTHON) deploy/install.py $(VENV)
	@touch $@

protos: $(STUBS) ## Compile the protos to Python

$(STUBS): protos/generate.py $(wildcard protos/nanoserve/v1/*.proto) $(INSTALLED)
	@$(BIN)/python protos/generate.py
	@touch $@

model: $(INSTALLED) ## Get the model (MODEL) and print its folder
	@$(BIN)/python -m deploy.model.fetch --model '$(MODEL)'

run: $(INSTALLED) $(STUBS) ## Answer one prompt: make run PROMPT="What is the capital of France?"
	@$(FIND_MODEL) && $(LOCAL) run --model "$$model" $(SERVER_FLAGS) -- \
		$(BIN)/nanoserve generate --temperature 0 --stats $(ARGS) -- "$$NANOSERVE_PROMPT"

chat: $(INSTALLED) $(STUBS) ## Talk with the model in this terminal
	@$(FIND_MODEL) && $(LOCAL) run --model "$$model" $(SERVER_FLAGS) -- \
		$(BIN)/nanoserve chat $(ARGS)

serve: $(INSTALLED) $(STUBS) ## Serve on LISTEN until Ctrl-C, which drains
	@$(FIND_MODEL) && $(LOCAL) serve --model "$$model" --listen $(LISTEN) $(SERVER_FLAGS)

top: $(INSTALLED) $(STUBS) ## Watch the server at LISTEN at work: rates, rows, block pool
	@$(BIN)/nanoserve top --address $(LISTEN) $(ARGS)

# Tests start hundreds of servers, which without this may compile the sources each time.
test: export PYTHONDONTWRITEBYTECODE =
test: $(INSTALLED) $(STUBS) ## Run the tests, with the default model
	@$(BIN)/python -m deploy.model.fetch >/dev/null
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-containers: $(INSTALLED) $(STUBS) ## Build the images and test the deployment (root, Docker)
	@TEST_CONTAINERS=1 $(BIN)/python -m pytest tests/end_to_end/containers \
		--durations=0 --durations-min=1 $(PYTEST_ARGS)

lint: $(INSTALLED) ## Check style: Python, protos, shell, Dockerfiles
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/buf lint protos
	@$(BIN)/shellcheck .ci/run tests/end_to_end/containers/containers.sh
	@$(BIN)/hadolint deploy/docker/*.Dockerfile

format: $(INSTALLED) ## Format the Python code and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(INSTALLED) $(STUBS) ## Check the types of client and scheduler
	@$(BIN)/mypy

loadtest: $(INSTALLED) $(STUBS) ## Put load on the server at LISTEN: make loadtest ARGS="--rate 2"
	@NANOSERVE_ADDRESS=$(LISTEN) $(BIN)/python -m deploy.loadtest run $(ARGS)

secrets: $(INSTALLED) $(STUBS) ## A CA, certificates and a token in secrets/: make secrets ARGS="--host NAME"
	@$(BIN)/python -m deploy.secrets init secrets $(ARGS)

soak: $(INSTALLED) $(STUBS) ## Faults under load (SEED repeats one): nothing may be lost
	@$(BIN)/python -m deploy.soak $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-cpu: $(INSTALLED) $(STUBS) ## Measure decode and prefill on this CPU, beside transformers
	@$(BIN)/python -m deploy.bench.cpu --model '$(MODEL)' $(ARGS)

bench-split: $(INSTALLED) $(STUBS) ## Measure what two processes cost against one
	@$(BIN)/python -m deploy.bench.split --model '$(MODEL)' $(ARGS)

bench-batching: $(INSTALLED) $(STUBS) ## Measure what batching buys, and static batching costs
	@$(BIN)/python -m deploy.bench.batching --model '$(MODEL)' $(ARGS)

bench-overload: $(INSTALLED) $(STUBS) ## Measure what is served in time at three times the capacity
	@$(BIN)/python -m deploy.bench.overload $(ARGS)

bench-gpu: $(INSTALLED) $(STUBS) ## Measure a GPU with random weights: make bench-gpu ARGS="--only 1b"
	@$(BIN)/python -m deploy.bench.gpu $(ARGS)

bench-profile: $(INSTALLED) $(STUBS) ## Show where a step's time goes: make bench-profile ARGS="--random 1b"
	@$(BIN)/python -m deploy.bench.profile --model '$(MODEL)' $(ARGS)

wheel: $(INSTALLED) ## Build the client's wheel into dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove what is built; the virtual environment and the models stay
	rm -rf dist build protos/nanoserve.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -f protos/nanoserve/v1/*_pb2.py protos/nanoserve/v1/*_pb2.pyi \
		protos/nanoserve/v1/*_pb2_grpc.py
	find deploy kernels protos scheduler tests worker -name __pycache__ -type d -prune \
		-exec rm -rf {} +
