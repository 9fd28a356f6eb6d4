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

# The packages of the test bed are looked for here too.
export PATH := $(PATH):/usr/sbin:/sbin:/usr/local/go/bin

.PHONY: help build agent image crds servers lint root test demo bench clean

help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build for development
	cargo build --workspace

agent: ## Build the static release binary
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target $(HOST)
	@ls -l $(AGENT)

image: agent ## Build a container image into an archive that runtimes can import
	@mkdir -p $(TARGET)/image && cp $(AGENT) $(TARGET)/image/ && rm -f $(ARCHIVE)
	@set -e; \
	if command -v buildah >/dev/null; then \
	  buildah --storage-driver vfs bud --quiet --isolation chroot --file Containerfile --tag $(IMAGE) $(TARGET)/image; \
	  buildah --storage-driver vfs push --quiet $(IMAGE) oci-archive:$(ARCHIVE):$(IMAGE); \
	elif command -v podman >/dev/null; then \
	  podman build --quiet --file Containerfile --tag $(IMAGE) $(TARGET)/image; \
	  podman save --quiet --format oci-archive --output $(ARCHIVE) $(IMAGE); \
	elif docker info >/dev/null 2>&1; then \
	  docker build --quiet --file Containerfile --tag $(IMAGE) $(TARGET)/image; \
	  docker save --output $(ARCHIVE) $(IMAGE); \
	else \
	  echo "an image is built by buildah, podman or docker, and none of them works here: install the package buildah" >&2; exit 1; \
	fi
	@echo "$(IMAGE) is in $(ARCHIVE); a node takes it with: ctr -n k8s.io images import $(notdir $(ARCHIVE))"

crds: ## Write the resource definitions anew from the types
	cargo run --quiet -- crd imagecaches >$(TARGET)/imagecaches.yaml
	cargo run --quiet -- crd nodeimagecaches >$(TARGET)/nodeimagecaches.yaml
	mv $(TARGET)/imagecaches.yaml $(TARGET)/nodeimagecaches.yaml manifests/crds/

# Built as the tests build it: each other selection of packages has features of its own, and compiles everything anew.
servers: ## Build the servers of the test bed, once; as root, install the packages that they need
	cargo test --workspace --no-run
	$(TARGET)/debug/testbed build

lint: ## Check formatting, lints and documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Before the builds, which take minutes.
root:
	@test "$$(id -u)" = 0 || { echo "real nodes need root: sudo make $(MAKECMDGOALS). What needs none: cargo test" >&2; exit 1; }

test: root lint agent servers ## Run every test, on real servers (needs root)
	cargo test --workspace -- --include-ignored

demo: root agent servers ## Show a cluster of three nodes at work (needs root; KEEP=1 leaves it up)
	$(TARGET)/debug/testbed demo $(if $(KEEP),--keep)

bench: root agent servers ## Measure, and write docs/performance.md (needs root)
	cargo bench --workspace --profile dev --bench fleet

clean: ## Remove what was built here; the servers stay in their cache
	cargo clean
