# Everything a contributor runs; the same in CI (.ci/run calls `make test`).
.PHONY: run cluster test check unit e2e bench bench-space reports sim mutants build
SHELL := /bin/bash
DEMO := target/demo
ADDRESS ?= 127.0.0.1:4450
SEEDS ?= 10000
# What the end-to-end tests run. The simulators are built apart: in one build with them the daemon would get their hooks.
BUILD = cargo build --release $(1) -p arden -p arden-lab && cargo build --release $(1) -p arden-sim && cargo build --release $(1) -p arden-block --example reservations

run: ## Serve a mirrored, continuously available share on 127.0.0.1:4450 and print how to connect
	@scripts/packages build
	cargo build --release -p arden
	@mkdir -p $(DEMO)
	@exec target/release/arden --state $(DEMO)/state serve --listen $(ADDRESS) --demo $(DEMO)/disks

cluster: ## Three nodes on this machine that serve one share; prints how to connect and which node to kill
	@scripts/packages cluster
	cargo build --release -p arden
	@exec scripts/cluster

build:
	$(call BUILD)

test: ## What CI runs
	@scripts/packages test
	@tests/downloads
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory -j2 unit-with-lints build-beside
	@$(MAKE) --no-print-directory e2e

.PHONY: style clippy unit-with-lints
style:
	cargo fmt --all --check
	scripts/tidy
	scripts/chart --check

clippy:
	cargo clippy --workspace --all-targets -- -D warnings

check: style clippy

# One pass of the compiler for both: clippy's driver compiles what it has looked at, and takes its arguments as `cargo clippy` hands them on.
CLIPPY_DRIVER = $(firstword $(wildcard $(shell rustc --print sysroot)/bin/clippy-driver) clippy-driver)
unit-with-lints:
	RUSTC_WORKSPACE_WRAPPER=$(CLIPPY_DRIVER) CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ tests/unit

unit:
	tests/unit

# The release build takes what processor time is left beside the unit tests, as many of these wait.
.PHONY: build-beside
build-beside:
	nice -n 15 sh -c '$(call BUILD,--quiet)'

e2e: build ## End to end: smbclient, smbprotocol, impacket, the kernel's client, smbtorture, kill -9, Samba's directories
	tests/e2e/run

.PHONY: clients
clients: build ## Sixteen independent SMB clients against Arden and Samba, and docs/clients.md anew; ARGS="--clients pysmb --kinds dir"
	@scripts/packages test
	tests/clients/run --server both --docs docs/clients.md $(ARGS)

.PHONY: wpts
wpts: build ## The vendor's conformance suites, WPTS=PATH of the script that runs them; ARGS="--suite FSA --filter Name~Quota", ARGS=--ca
	@scripts/packages test
	tests/wpts/run --wpts $(WPTS) $(ARGS)

bench-space: ## Spaces against fio and btrfs, and on simulated disks; ARGS=--quick for one short round
	@scripts/packages test
	tests/bench/space $(ARGS)

bench: ## Arden against Samba, same client, same disk, same run; ARGS="--only e1" for one part
	@scripts/packages test
	tests/bench/run $(ARGS)
	scripts/chart

reports: ## docs/reports anew, on a machine that does nothing else; ARGS="--quick", ARGS="--limit 10m e1 e2"
	@scripts/packages test
	tests/bench/reports $(ARGS)

sim: ## Storage, and the whole server, under simulated faults, seed after seed
	cargo run --release -p arden-sim -- --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --pool --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --volume --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --concurrent --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --server --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --identity --seeds $(SEEDS)
	cargo run --release -p arden-sim -- --cluster --seeds $(SEEDS)

mutants: ## Deliberate bugs in the storage code, each of which a simulator has to find; ARGS="NAME..." for some
	tests/mutants/run $(ARGS)
