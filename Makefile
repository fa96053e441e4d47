# Two commands do everything on a fresh Debian machine with Rust:
#
#   make demo    builds two recipes for two architectures and lists what is in S3
#   make test    runs the tests; `make test-all` also those that take long
#
# Whatever is missing is installed, with a line that says what and why.

SHELL := /bin/bash
.DEFAULT_GOAL := build
PROFILE ?= release
# A release has no features of third-party crates that other packages ask for; a debug build shares them with the tests.
CARGO_KILN := $(if $(filter release,$(PROFILE)),--release --package kiln,)
HOST_TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
OUT := $(TARGET_DIR)/$(PROFILE)
# What the agent is for: this machine, or build nodes of another architecture, as in `make agent ARCH=aarch64`.
HOST_ARCH := $(firstword $(subst -, ,$(HOST_TARGET)))
ARCH := $(HOST_ARCH)
FOREIGN := $(filter-out $(HOST_ARCH),$(ARCH))
TARGET := $(ARCH)$(patsubst $(HOST_ARCH)%,%,$(HOST_TARGET))
AGENT_OUT := $(OUT)$(FOREIGN:%=/%)
CROSS := $(if $(FOREIGN),CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER=$(ARCH)-linux-gnu-gcc)
CARGO_AGENT := $(CROSS) cargo build --locked --target $(TARGET) --target-dir $(TARGET_DIR)/agent
STATIC := RUSTFLAGS="-C target-feature=+crt-static" $(CARGO_AGENT)
COMPANIONS := $(if $(filter x86_64 aarch64,$(ARCH)),kiln-exec)

.PHONY: build agent packages demo test lint bench clean

## build: kiln and its static agent
build: agent
	cargo build --locked $(CARGO_KILN) --bin kiln

## agent: the static program that runs inside sandboxes, and what lies beside it
# A release has its own target directory: other features and flags would otherwise rebuild everything at each change of side.
agent: packages answers $(COMPANIONS)
ifeq ($(PROFILE)$(FOREIGN),debug)
# Made of the same compiled crates as the kiln and the tests beside it, of which it needs few: only its last step links
# it statically.
	cargo rustc --locked --package kiln-agent-program --features beside-kiln -- -C target-feature=+crt-static -C strip=symbols -C panic=abort
else
	$(STATIC) --profile agent --package kiln-agent-program
	@install -D $(TARGET_DIR)/agent/$(TARGET)/agent/kiln-agent $(AGENT_OUT)/kiln-agent
endif

# Goes in front of the emulator. It has a little assembly, for the hosts that most sites have.
.PHONY: kiln-exec
kiln-exec: packages
	$(STATIC) --profile exec --package kiln-exec
	@install -D $(TARGET_DIR)/agent/$(TARGET)/exec/kiln-exec $(AGENT_OUT)/kiln-exec

# Loaded into native twins of the image's programs.
.PHONY: answers
answers: packages
	$(CARGO_AGENT) --profile agent --package kiln-answers
	@install -D $(TARGET_DIR)/agent/$(TARGET)/agent/libanswers.so $(AGENT_OUT)/answers.so

## packages: what builds need from Debian
packages:
	@.ci/install-packages build $(FOREIGN:%=agent-%)
	@$(if $(FOREIGN),rustup target list --installed | grep -qx $(TARGET) || rustup target add $(TARGET))

## demo: a small recipe for two architectures, then a bootable one
# With the programs that tests run, so that what either compiles serves both; a release takes three times as long to compile.
demo: PROFILE := debug
demo:
	@$(MAKE) --no-print-directory PROFILE=debug build
	@KILN=$(TARGET_DIR)/debug/kiln examples/demo.sh

## test: every unit test, and of each area what is quick
test: PROFILE := debug
test:
	@.ci/install-packages build test
	@$(MAKE) --no-print-directory PROFILE=debug agent
	.ci/test quick

## test-all: everything, for real: `make test`, then what it leaves out
.PHONY: test-all
test-all: test
	.ci/test rest

# Outside `make test-all`: it compiles for some minutes, once for each version of Kubernetes. Prints where the programs are.
## kubernetes-rig: the programs of a cluster that tests start
.PHONY: kubernetes-rig
kubernetes-rig:
	.ci/kubernetes-rig build $(DIR)

## deb: a Debian package, in target/deb. `make deb ARCH=aarch64` makes that for the other architecture
# A debug one, for tests, has the agents that are there; a release has those for both architectures.
.PHONY: deb
deb: build
	@.ci/install-packages deb $(FOREIGN:%=deb-%)
ifeq ($(PROFILE),release)
	@$(MAKE) --no-print-directory ARCH=$(if $(FOREIGN),$(HOST_ARCH),$(if $(filter x86_64,$(HOST_ARCH)),aarch64,x86_64)) agent
ifneq ($(FOREIGN),)
	$(CROSS) cargo build --locked --release --package kiln --bin kiln --target $(TARGET)
	@rm -rf $(TARGET_DIR)/deb/programs && install -d $(TARGET_DIR)/deb/programs/$(HOST_ARCH)
	@install -t $(TARGET_DIR)/deb/programs $(TARGET_DIR)/$(TARGET)/release/kiln $(AGENT_OUT)/kiln-agent $(AGENT_OUT)/kiln-exec $(AGENT_OUT)/answers.so
	@install -t $(TARGET_DIR)/deb/programs/$(HOST_ARCH) $(OUT)/kiln-agent $(OUT)/kiln-exec $(OUT)/answers.so
endif
endif
	@mkdir -p $(TARGET_DIR)/deb
	HOST_KILN=$(abspath $(OUT))/kiln debian/build $(if $(FOREIGN),$(TARGET_DIR)/deb/programs,$(OUT)) $(ARCH) $(TARGET_DIR)/deb

lint: packages
	@.ci/install-packages lint
	cargo fmt --all --check
	cargo clippy --locked --workspace --exclude kiln-answers --exclude kiln-exec --all-targets -- -D warnings
	cargo clippy --locked --package kiln-answers --profile agent -- -D warnings
	cargo clippy --locked --package kiln-exec --profile exec -- -D warnings
	.ci/lint-dependencies
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

## bench: measured figures, as ratios
bench: PROFILE := release
bench: build
	@.ci/install-packages bench
	benches/run
	benches/emulation
	RELEASE=trixie KINDS="native full" benches/emulation builds
	benches/corpus/run
	benches/api
	benches/catalogue
	benches/jobs
	benches/customize
	benches/rebuild

clean:
	cargo clean
