# Everything a new machine needs beside the Rust toolchain is set up by `make setup`.

CARGO ?= cargo
VENV  := target/venv

.PHONY: all demo test setup lint check bench clean

all:
	$(CARGO) build --release -p carma -p carma-lab

## Plays a mix of tasks on virtual GPUs, exclusive and shared, and compares.
demo:
	$(CARGO) build --release -p carma
	./target/release/carma demo

## Installs what the tests use: a test runner, and an independent NVML client from PyPI.
setup:
	./.ci/setup $(VENV)

## Format, lints, unit, property, scenario and end-to-end tests.
test: setup lint
	@echo "not run here, since they need an NVIDIA GPU (cargo test -p carma-gpu -- --ignored):"
	@grep -rh -A2 '^#\[ignore' crates/*/tests lab/*/tests | grep -oE 'fn [a-z_0-9]+' | sed 's/^fn /  /'
	CARMA_TEST_PYTHON=$(CURDIR)/$(VENV)/bin/python3 \
	CARMA_TEST_TORCH_PYTHON=$(CURDIR)/$(VENV)/bin/python3 $(CARGO) nextest run --workspace
	@.ci/skipped target/nextest/default/junit.xml

lint:
	.ci/links
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

check:
	$(CARGO) check --workspace --all-targets

## Launch rate beside pueue and task-spooler, idle cost, queue latency, decision time, speed of the simulator.
bench: setup
	$(CARGO) build --release -p carma
	$(CARGO) bench -p carma-core --bench decision
	$(CARGO) bench -p carma-sim --bench simulate
	./bench/launch.sh

clean:
	$(CARGO) clean
