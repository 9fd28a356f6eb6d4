# Everything that is done with this folder. `make` alone lists it.

HOST := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# The static release binary: what the image holds, and what the tests on real nodes run.
AGENT := $(TARGET)/$(HOST)/release/imagecache-agent
IMAGE := localhost/imagecache-agent:$(VERSION)
ARCHIVE := $(TARGET)/imagecache-agent-$(VERSION).tar

# The tests that start whole clusters share the machine's cores with them.
export RUST_TEST_THREADS ?= 2
export IMAGECACHE_AGENT := $(abspath $(AGENT))

.PHONY: help build agent image crds servers lint test demo bench clean

help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build for development
	cargo build --workspace

agent: ## Build the static release binary
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target $(HOST)
	@ls -l $(AGENT)

image: agent ## Build a container image into an archive that runtimes can import
	@TARGET=$(TARGET) ./image.sh $(AGENT) $(IMAGE) $(ARCHIVE)

crds: ## Write the resource definitions anew from the types
	cargo run --quiet -- crd imagecaches >$(TARGET)/imagecaches.yaml
	cargo run --quiet -- crd nodeimagecaches >$(TARGET)/nodeimagecaches.yaml
	mv $(TARGET)/imagecaches.yaml $(TARGET)/nodeimagecaches.yaml manifests/crds/

servers: ## Build the servers of the test bed, once; as root, install the packages that they need
	cargo run --quiet --package testbed -- build

lint: ## Check formatting, lints and documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

test: lint agent servers ## Run every test, on real servers (needs root)
	@test "$$(id -u)" = 0 || { echo "the tests on real servers need root; what needs none: cargo test" >&2; exit 1; }
	cargo test --workspace -- --include-ignored

demo: agent servers ## Show a cluster of three nodes at work (needs root; KEEP=1 leaves it up)
	cargo run --quiet --package testbed -- demo $(if $(KEEP),--keep)

bench: agent servers ## Measure, and write docs/performance.md (needs root)
	cargo bench

clean: ## Remove what was built here; the servers stay in their cache
	cargo clean
