# `make demo` and `make test` do all their set-up on a fresh Debian or Ubuntu with Rust and Python 3.11+.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
BUILD  := $(or $(CARGO_TARGET_DIR),target)
PROFILE ?= release
# What the wheel is for: aarch64, x86_64 or a triple; this machine's own if it is empty.
ifneq ($(origin TARGET),command line)
TARGET :=
endif
FOREIGN := $(filter-out $(shell uname -m),$(firstword $(subst -, ,$(TARGET))))
# Where the wheel comes to, and what says that the environment has that one.
OUT     ?= $(if $(filter release,$(PROFILE)),dist,build/$(PROFILE))$(addprefix /,$(FOREIGN))
WHEEL    = $(VENV)/.wheel-$(notdir $(OUT))
# Where `make install` puts the C library, and the one that it takes: built first, unless another one is named.
PREFIX ?= /usr/local
LIBRARY ?= $(BUILD)/release/libtransfer_engine.so
# The wheel that mixed versions are tested beside.
OLD ?= 49e5191
# Schedules of each test of the simulation in `make test-long`, and how long faults go on there, seconds.
SCHEDULES ?= 10000
FAULTS ?= 3600

# Tests of installations take it from there.
export TESTED_WHEELS = $(abspath $(OUT))

# A first build is quicker without what later ones would go on from; whoever builds by cargo goes on from that.
ifeq ($(wildcard $(BUILD)/debug/incremental),)
export CARGO_INCREMENTAL ?= 0
endif

RUST_SOURCES   := $(shell find crates -name '*.rs' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name '*.proto' -o -name Cargo.toml 2>/dev/null)
PYTHON_SOURCES := $(shell find python packaging -type f -not -name '*.so' -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: help demo test lint-code lint-rest test-rust test-loom test-python test-wheel test-long test-aarch64 test-rdma machine wheel install wheel-of bench e2e ttft gpu reference fmt lint clean

# Where the virtual environment was made: one that was moved with its checkout is mended before it is used.
MADE_AT := $(shell sed -n 's/^command = .* -m venv \(--[^ ]* \)*//p' $(VENV)/pyvenv.cfg 2>/dev/null)
MOVED   := $(if $(MADE_AT),$(if $(filter-out $(abspath $(VENV)),$(MADE_AT)),moved))

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(WHEEL) ## a pool on this machine replays a request trace while a node and the master are killed
	$(PY) -m pip install --quiet --disable-pip-version-check -r demo/requirements.txt
	$(PY) demo/replay.py
	$(PY) demo/tier.py

test: lint-code test-rust test-python ## everything: format, lints, Rust tests, wheel, Python tests

wheel: $(OUT)/.built ## dist/mooncake_rs-*.whl; with TARGET=aarch64 dist/aarch64/..., linked for that
	@ls -l $(OUT)/*.whl

install: $(LIBRARY) ## the C library, its header, pkg-config and CMake files below PREFIX (/usr/local), as in the wheel
	packaging/c_library.sh $(LIBRARY) $(DESTDIR)$(PREFIX)
	@echo "installed below $(DESTDIR)$(PREFIX): docs/c-library.md"

wheel-of: ## REV=...: the wheel of another revision, in build/wheels
	@[ -n "$(REV)" ] || { echo "which revision? make wheel-of REV=49e5191"; exit 2; }
	@PYTHON=$(PYTHON) packaging/wheel_of.sh $(REV)

bench: $(WHEEL) ## compare with the rival and with memcpy and loopback, in one run
	bench/run.sh

e2e: $(OUT)/.built ## run vLLM, LMCache and SGLang's store against the pool (3 GB of downloads)
	$(PY) e2e/run.py

ttft: $(OUT)/.built ## time to first token: computed, from our pool, from the rival's, from Redis
	$(PY) e2e/ttft.py

gpu: $(WHEEL) ## device memory against a real GPU, with its rates; skips where there is none
	$(PY) -m pytest -s tests/gpu

reference: $(WHEEL) ## docs/settings.md, metrics.md, error-codes.md and the C header from the code
	cargo xtask reference
	$(PY) -c 'from mooncake.errors import reference_page; print(reference_page(), end="")' > docs/error-codes.md

fmt: $(VENV)/.tools ## format Rust and Python
	cargo fmt --all
	$(PY) -m ruff check --quiet --fix-only .
	$(PY) -m ruff format --quiet .

lint: lint-code lint-rest ## format check, clippy, ruff, layers and words, links of the documentation, licences where cargo-deny is installed

# What clippy does not need is fetched while it works. The kernels for the other architecture are looked at where Rust's
# library for it can be had.
lint-code: $(if $(shell command -v cc),,$(VENV)/.tools)
	$(AGAIN) $(VENV)/.test-tools & tools=$$!; \
	passed=0; { cargo fmt --all --check && cargo clippy --workspace --all-targets --locked -- -D warnings; } || passed=$$?; \
	wait $$tools && exit $$passed
	if rustup target add aarch64-unknown-linux-gnu >/dev/null 2>&1; then \
	  cargo clippy --quiet --locked --target aarch64-unknown-linux-gnu -p mooncake-memory -- -D warnings; fi
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	if cargo deny --version >/dev/null 2>&1; then cargo deny --offline --locked check bans licenses sources; fi

# What needs little, beside Python's tests: their disks are not to be held up.
lint-rest:
	cargo xtask layers
	cargo xtask words
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --document-private-items --workspace --locked

# By another name: `make -n` runs a line that names make itself.
AGAIN = $(MAKE) --no-print-directory

# Where tests wait, what comes next is built, and gives way to them. What fails of that is built, and told, again. The runner
# of the tests is told what was built for it: it would wait until cargo has built the wheel.
test-rust: | $(VENV)/.tools ## Rust tests and doc tests
	if cargo nextest --version >/dev/null 2>&1; then \
	  mkdir -p build; \
	  cargo nextest list --locked --list-type binaries-only --message-format json >build/tests.json; \
	  cargo metadata --locked --format-version 1 >build/metadata.json; \
	  (nice -n 19 $(AGAIN) $(TESTED) build/dev/.built >/dev/null 2>&1 || true) & \
	  passed=0; \
	  cargo nextest run --cargo-metadata build/metadata.json --binaries-metadata build/tests.json --no-fail-fast -j $$(($$(nproc) + 1)) || passed=$$?; \
	  wait; exit $$passed; \
	else timeout 25m cargo test --locked --all-targets --no-fail-fast; fi
	cargo test --locked --doc

test-loom: ## the order of writers and readers under every interleaving that the memory model allows (part of test-rust)
	cargo test --quiet --locked -p mooncake-memory --test loom_order

# A wheel of its own, of what Rust's tests have built: not optimised, and with all of its assertions.
TESTED = OUT=build/dev PROFILE=dev
test-python: ## Python tests against a wheel
	(nice -n 19 $(AGAIN) lint-rest) & docs=$$!; \
	passed=0; $(AGAIN) $(TESTED) test-wheel || passed=$$?; \
	wait $$docs && exit $$passed

test-wheel: $(WHEEL) $(VENV)/.test-tools
	$(PY) -m pytest -n $$((2 * $$(nproc))) --dist loadfile -m 'not (long or alone)'
	$(PY) -m pytest -m 'alone and not long'

test-long: $(WHEEL) ## what takes long: SCHEDULES of the simulation, FAULTS seconds of faults, power cuts, versions beside the wheel of OLD
	MOONCAKE_SEEDS=$(SCHEDULES) cargo test --locked -p mooncake-sim --test schedules -- --nocapture
	MOONCAKE_TIER_SEEDS=$(SCHEDULES) MOONCAKE_TIER_KILLS=200 cargo test --locked -p mooncake-tier --tests -- --nocapture
	MOONCAKE_TIER_SEEDS=$(SCHEDULES) cargo test --locked -p mooncake-sim --test tiers_serve_what_the_log_says -- --nocapture
	MOONCAKE_KEPT_SEEDS=$(SCHEDULES) cargo test --locked -p mooncake-sim --test kept_memory -- --nocapture
	old=$$(PYTHON=$(PYTHON) packaging/wheel_of.sh $(OLD)); MOONCAKE_OLD_WHEEL=$$old MOONCAKE_TIER_FAULT_SECONDS=$(FAULTS) $(PY) -m pytest -rP -m 'long or slow or mixed'

machine: $(WHEEL) ## what needs a kernel of its own, in an emulated machine: power cuts, bad disks (part of test-long)
	$(PY) -m pytest -rP -m long $(wildcard tests/python/test_machine_*.py)

test-rdma: $(WHEEL) ## engines by RDMA, in an emulated machine with Soft-RoCE devices (part of test-long)
	$(PY) -m pytest -rP -m long tests/python/test_machine_rdma.py

test-aarch64: $(VENV)/.test-tools ## the wheel for aarch64 and the kernels of its copies, on emulated processors (part of test-long)
	$(PY) -m pytest -rP -m long tests/python/test_aarch64.py

clean: ## remove what was built
	rm -rf build dist $(VENV)
	cargo clean

# ------------------------------------------------------------------ pieces

$(BUILD)/release/libtransfer_engine.so: $(RUST_SOURCES) Cargo.lock
	cargo build --locked --release -p mooncake-transfer-engine-c
	touch $@

.PHONY: moved
moved:

$(VENV)/.tools: tests/python/requirements.txt packaging/environment.sh $(MOVED)
	packaging/environment.sh $(PYTHON) $(VENV) tests/python/requirements.txt
	touch $@

# What only tests need: a browser for pages, and programs that check what deploy/ has.
$(VENV)/.test-tools: packaging/test_tools.sh packaging/deploy_tools.sh | $(VENV)/.tools
	packaging/test_tools.sh
	packaging/deploy_tools.sh $(VENV)
	touch $@

$(OUT)/.built: $(RUST_SOURCES) $(PYTHON_SOURCES) Cargo.toml Cargo.lock pyproject.toml | $(VENV)/.tools
	PROFILE=$(PROFILE) TARGET=$(TARGET) BUILD=$(BUILD) OUT=$(OUT) packaging/wheel.sh $(VENV)
	touch $@

$(WHEEL): $(OUT)/.built
	rm -f $(VENV)/.wheel*
	$(PY) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(OUT)/*.whl
	touch $@
