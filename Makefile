SHELL := bash
.DEFAULT_GOAL := help

PORT ?= 6379
# Debian's Redis and its service expect modules in /usr/lib/redis/modules.
PREFIX ?= /usr
MODULES = $(DESTDIR)$(PREFIX)/lib/redis/modules
# What `make run` keeps between two runs.
DATA ?= $(CURDIR)/target/run
export REDIS_SERVER ?= redis-server

# Set here, so that the module is where the other recipes look for it.
export CARGO_TARGET_DIR := $(CURDIR)/target
MODULE := $(CARGO_TARGET_DIR)/release/libredis_lock.so
export REDIS_LOCK_MODULE := $(MODULE)

# The tests of programs in examples/ to which it matters little which server they talk to; and of all.
PROGRAMS := clients python nightly leader locked lost_update job_steps
EXAMPLES := $(PROGRAMS) atomic_updates monitor redlock
# The tests for each server.
MATRIX := $(filter-out $(PROGRAMS),$(basename $(notdir $(wildcard tests/*.rs))))

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Start a server with the module and redis.conf in the foreground (PORT=6379)
	@if (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
	  echo 'Port $(PORT) is taken. Choose another: make run PORT=6380' >&2; exit 1; fi
	@mkdir -p '$(DATA)'
	@# The two places that redis.conf names are those of an installed server; here they are this clone's.
	@sed -e 's|^loadmodule .*|loadmodule "$(MODULE)"|' -e 's|^dir .*|dir "$(DATA)"|' redis.conf >'$(DATA)/redis.conf'
	@printf '\nTo try, in another terminal:\n\n'
	@printf '  redis-cli -p $(PORT) %s\n' \
	  'LOCK.ACQUIRE my-lock my-token 60000' 'LOCK.FENCE my-lock my-token' 'LOCK.RELEASE my-lock my-token'
	@printf '\nCtrl-C ends the server.\n\n'
	@exec $(REDIS_SERVER) '$(DATA)/redis.conf' --port $(PORT)

.PHONY: test
test: build ## Run all tests against redis-server (REDIS_SERVER=/path for another)
	cargo test --no-fail-fast

.PHONY: examples
examples: build clients ## Run the examples in all languages, and the README's snippets: some minutes
	tests/snippets/run
	cargo test --no-fail-fast $(addprefix --test ,$(EXAMPLES))

.PHONY: test-matrix
test-matrix: build ## Run the tests against each server of REDIS_SERVERS="/path /path"
	@[ -n '$(strip $(REDIS_SERVERS))' ] || { echo 'Name the servers: make test-matrix REDIS_SERVERS="/path /path"' >&2; exit 1; }
	@failed=; for server in $(REDIS_SERVERS); do \
	  printf '\n== %s: %s\n' "$$server" "$$("$$server" --version)"; \
	  REDIS_SERVER=$$server cargo test --no-fail-fast $(addprefix --test ,$(MATRIX)) || failed+=" $$server"; \
	done; [ -z "$$failed" ] || { echo "Failed on:$$failed" >&2; exit 1; }

.PHONY: bench
bench: build ## Measure what locks cost beside what they replace; writes target/bench
	scripts/get-clients python
	cargo bench --quiet

# That `unsafe` stays in src/server/, and what else the code must not do, src/lib.rs has the compiler and clippy check.
.PHONY: lint
lint: dependencies ## Check the format, clippy's lints, and the licences of dependencies (with cargo-deny)
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny check bans licenses sources; \
	  else echo 'Licences are not checked: cargo install cargo-deny --locked'; fi

.PHONY: build
build: dependencies ## Build the module, target/release/libredis_lock.so
	cargo build --release

.PHONY: dependencies
dependencies: ## Install the Debian packages that are missing
	@scripts/install-missing

.PHONY: clients
clients: ## Set up the clients of other languages, in target/clients
	@scripts/get-clients

.PHONY: install
install: ## Copy the module that was built to PREFIX/lib/redis/modules (PREFIX=/usr)
	@[ -e '$(MODULE)' ] || { echo 'There is nothing to install yet: make build' >&2; exit 1; }
	install -d '$(MODULES)'
	install -m 755 '$(MODULE)' '$(MODULES)'

.PHONY: uninstall
uninstall: ## Remove it from there
	rm -f '$(MODULES)/$(notdir $(MODULE))'

.PHONY: clean
clean: ## Remove what was built, and what make run kept
	cargo clean
