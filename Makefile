# Everything a contributor and the CI run. `make test` is the whole truth; `make check` is style and law.

CARGO ?= cargo
DENY = target/tools/bin/cargo-deny
LEFTOVERS = $(CARGO) run --quiet --package cofferdam-tests --bin leftovers --

.DEFAULT_GOAL := build
.PHONY: setup build check test demo bench chaos v2 clean

## what the machine lacks: PostgreSQL's server, an OCI runtime, Python, cargo-deny
setup:
	@scripts/setup

## target/release/cofferdam
build:
	$(CARGO) build --release --bin cofferdam

## format, lints, dependencies and their licences, documentation
check: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(DENY) --log-level error check bans licenses sources
	@scripts/advisories $(DENY)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace

## real database, real sandboxes; afterwards nothing of ours may be left on the host
test: setup
	$(CARGO) build --bin cofferdam
	@$(LEFTOVERS) keep target/leftovers
	$(CARGO) test --workspace; status=$$?; $(LEFTOVERS) compare target/leftovers && exit $$status

## a real project's test suite in four sandboxes, behind a gate, with the proofs at the end
demo: setup build
	@scripts/demo $(DEMO_FLAGS)

## the numbers of SPECIFICATION.md
bench: setup build
	@$(CARGO) run --quiet --release --package cofferdam-tests --bin bench

## workers, database and sandboxes killed at random; prints the seed that replays it
chaos: setup build
	$(CARGO) test --release --package cofferdam-tests --test chaos -- --ignored --nocapture

## the class container on cgroup version 2 alone, in an emulated machine; needs `scripts/setup --microvm` once
v2: setup
	@held=$$($(CARGO) test --package cofferdam-sandbox --test conformance --no-run --message-format=json | \
		sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1) && \
	scripts/on-v2 -- sh -c 'cd crates/sandbox && exec "$$0" the_class_container --nocapture' "$$held"

clean:
	$(CARGO) clean
	rm -rf .demo
