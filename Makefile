# Everything a contributor and the CI run. `make test` is the whole truth; `make check` is style and law.

CARGO ?= cargo
DENY = target/tools/bin/cargo-deny
TYPOS = target/tools/bin/typos

.DEFAULT_GOAL := build
.PHONY: setup build check policies unit contract clients release dist test attack fuzz demo bench chaos storm soak v2 docker fresh first-minute clean
.PHONY: lane-quick lane-check lane-full verdict

## what the machine lacks: PostgreSQL's server, an OCI runtime, Python, cargo-deny
setup:
	@scripts/setup

## target/release/cofferdam, quick to make; the binary that `make dist` publishes takes longer and is faster
build:
	$(CARGO) build --release --bin cofferdam

## format, typing errors, subjects of commits, lints, dependencies and their licences, documentation
check: setup
	$(CARGO) fmt --all --check
	$(TYPOS) --format brief
	@scripts/subjects
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(DENY) --log-level error check bans licenses sources
	@scripts/advisories $(DENY)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace

## the laws of the source: floors, SQL in one crate, clocks and randomness, no child session, words, no silent skip
policies: setup
	$(CARGO) test --workspace --test system -- architecture:: language:: reference:: skips:: release_gates::

## unit tests of every crate
unit: setup
	$(CARGO) test --workspace --lib --bins

## coding agents in strict mode: the daemon's contract (real and fake), no child session, all that is planned, the golden trace and
## the replay with a seed; npm and its registry are needed, and nothing is skipped
contract: export COFFERDAM_TEST_LONG = 1
contract: export OC_STRICT_MODE = 1
contract: setup
	@scripts/setup --agents
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --package cofferdam-opencode
	$(CARGO) test --workspace --test system -- --include-ignored opencode:: strict:: agents:: \
		architecture::children:: planner:: own_names::agents_b10_deno_and_bun

## the gates of a lane (scripts/gates.list), and the release's verdict in target/gates/verdict.json
lane-quick lane-check lane-full:
	@scripts/gates $(@:lane-%=%)

## the verdict on this tree: exit 0 GO, 1 NO_GO
verdict:
	@scripts/gates verdict

## every client of E2B that is tested, older versions and the interpreter's included, and programs that use them: CI runs the newest
## client, the oldest one and a part
clients: export COFFERDAM_TEST_LONG = 1
clients: export OC_STRICT_MODE = 1
clients: setup
	@scripts/setup --agents
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace --test system -- --include-ignored e2b::older_clients e2b::the_ e2b::built::templates_are \
		e2b::interpreter e2b::cli e2b::classes::the_ e2b::network::the_ e2b::mixed e2b::expected
	@scripts/e2b-consumers

## the binary that is published: no check may be skipped, and the tests must pass
release: export COFFERDAM_RELEASE = 1
release: check test
	$(CARGO) build --profile published --bin cofferdam

## what is published, into target/dist: archive, Debian package and, as root with mmdebstrap and umoci, an OCI image
dist: setup
	$(CARGO) build --profile published --bin cofferdam
	@scripts/dist
	@scripts/dist-image

## real database, real sandboxes; afterwards nothing of ours may be left on the host
## all in one build: one for the binary alone would choose other features, and half of it would be made twice
test: setup
	$(CARGO) build --workspace --bins --tests
	@scripts/test

## a real project's test suite in four sandboxes, behind a gate, with the proofs and the time of each part at the end; the quick
## build, which `make test` takes too
demo:
	@CARGO='$(CARGO)' scripts/demo --build $(DEMO_FLAGS)

## what an attack found (docs/security.md), tried again: its tests by their numbers, the probes of every class
attack: setup
	$(CARGO) build --bin cofferdam
	@scripts/attack

# Seconds of each target; there are 33, and as many run at once as there are cores.
FUZZ_SECONDS ?= 600

## every parser of hostile bytes, each for FUZZ_SECONDS (600); `make test` gives all of them a minute together
fuzz:
	BOLERO_RANDOM_ITERATIONS=1000000000000 BOLERO_RANDOM_TEST_TIME_MS=$$(($(FUZZ_SECONDS) * 1000)) \
		$(CARGO) test --no-fail-fast --package cofferdam-contracts --package cofferdam-guest \
		--package cofferdam-sandbox --package cofferdam-e2b --lib --bins --test contracts --test fuzz -- fuzz_

## the numbers of SPECIFICATION.md, with the binary as it is published, into bench/results; then
## UPDATE_GOLDENS=1 cargo test --workspace --test system -- reference::figures writes the pages
bench: setup
	$(CARGO) build --profile published --bin cofferdam --bin bench
	@$(CARGO) run --quiet --profile published --bin bench

## workers, database and sandboxes killed at random, and servers at each moment of a pause, resume, fork or snapshot; prints the seed
## that replays it
chaos: export COFFERDAM_TEST_LONG = 1
chaos: setup build
	$(CARGO) test --release --package cofferdam-tests --test system -- --ignored --nocapture chaos::
	$(CARGO) test --release --package cofferdam-tests --test system -- kept_faults:: a_server_that_is_killed_around_a_pause_of_memory

# How long it storms; SEED replays a schedule.
SECONDS ?= 500

## a fleet in a seeded storm for SECONDS (500): processes, network, database; prints times to recovery as JSON lines and adds them to
## bench/results
storm: setup build
	COFFERDAM_STORM_SECONDS=$(SECONDS) $(if $(SEED),COFFERDAM_TEST_SEED=$(SEED)) \
		$(CARGO) test --release --package cofferdam-tests --test system -- --ignored --nocapture storm::

# How long the soak is.
SOAK_SECONDS ?= 3600

## the same load for SOAK_SECONDS (3600), by which neither memory nor open files of the server may grow
soak: setup build
	COFFERDAM_SOAK_SECONDS=$(SOAK_SECONDS) \
		$(CARGO) test --release --package cofferdam-tests --test system -- --ignored --nocapture soak::

## the class container on cgroup version 2 alone, in an emulated machine; needs `scripts/setup --microvm` once
v2: setup
	@held=$$($(CARGO) test --package cofferdam-sandbox --test sandbox --no-run --message-format=json | \
		sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1) && \
	scripts/on-v2 -- sh -c 'cd crates/sandbox && exec "$$0" conformance::the_class_container conformance::kept --nocapture' "$$held"

## the class docker with Debian's Docker Engine, which is unpacked and started for these tests and not installed
docker: setup
	$(CARGO) build --workspace --bins --tests
	@scripts/on-docker -- scripts/docker

## demo and tests on a Debian that has nothing but Debian; FRESH_FLAGS="--suite trixie --demo"
fresh:
	@scripts/fresh $(FRESH_FLAGS)

## the archive of `make dist` on a Debian that has nothing but Debian, to the first sandboxed command; FIRST_MINUTE_FLAGS="--suite trixie"
first-minute:
	@scripts/first-minute $(FIRST_MINUTE_FLAGS)

clean:
	$(CARGO) clean
	rm -rf .demo
