# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up what they need; everything they install but the Debian
# packages lands in .venv, build and mrc/_core*.so, which `make clean` removes.

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python
PYTEST := $(RUN) -m pytest

PACKAGES := python3-venv python3-dev gcc libc6-dev iproute2 nftables ethtool
TEST_PACKAGES := valgrind
BENCH_PACKAGES := iperf3 libfabric-bin ucx-utils
# What `dpkg-query` says of a package that is there.
INSTALLED = dpkg-query -W -f '$${Status}\n' $(1) 2>/dev/null | grep -c '^install ok installed'
# Debian packages that are not there: installed by root, else named; they may be there otherwise.
define APT
@if command -v dpkg-query >/dev/null && [ "$$($(call INSTALLED,$(1)))" != $(words $(1)) ]; then \
  if [ "$$(id -u)" = 0 ]; then \
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $(1); \
  else echo "if what follows fails, as root: apt-get install $(1)" >&2; fi; \
fi
endef

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g
ASAN_TREE := mrc csrc tests tools pyproject.toml README.md LICENSE Makefile

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

.venv/system:
	$(call APT,$(PACKAGES))
	@mkdir -p .venv && touch $@

.venv/stamp: pyproject.toml .venv/system
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

.venv/testing:
	$(call APT,$(TEST_PACKAGES))
	@mkdir -p .venv && touch $@

.venv/peers:
	$(call APT,$(BENCH_PACKAGES))
	@mkdir -p .venv && touch $@

build/stamp: .venv/stamp tools/backend.py $(wildcard csrc/*.[ch] csrc/*/*.[ch] tools/fabric/*.[ch])
	CFLAGS=-Werror $(RUN) tools/backend.py
	@mkdir -p build && touch $@

build: build/stamp  ## the C extension, in place, warnings being errors

lint: .venv/stamp  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint build .venv/testing  ## lint, and the tests that need neither root nor time (under a minute)
	$(PYTEST) -q -n 2 -m "not rig and not slow and not bench"

test: build .venv/testing  ## the whole suite; as root also over real packets, one test at a time
	$(PYTEST) -q -n 2 -m "not rig and not bench"
	$(PYTEST) -m "rig and not bench"

asan: build  ## the suite, but for its speed, with the address and undefined-behaviour sanitizers
	@rm -rf build/asan && mkdir -p build/asan && cp -r $(ASAN_TREE) build/asan
	@rm -f build/asan/mrc/_core*.so build/asan/tools/fabric/_fabric*.so && rm -rf build/asan/tests/native/_build
	cd build/asan && CFLAGS="-Werror $(SANITIZE)" LDFLAGS="$(SANITIZE)" \
	  $(abspath $(RUN)) tools/backend.py
	cd build/asan && MRC_SANITIZE=1 PYTHONPATH="$$PWD" PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" $(abspath $(RUN)) -m pytest \
	  -m "not bench" --ignore=tests/test_tree.py --ignore=tests/test_install.py \
	  --ignore=tests/test_cost.py --ignore=tests/rig/test_performance.py

SECONDS := 60
explore: build  ## random faults in the simulator for SECONDS (60); prints how to replay what fails
	nice $(RUN) -m tools.explore --seconds $(SECONDS)

demo: build  ## a file over four planes between two hosts, one plane pulled out on the way
	$(RUN) tools/demo.py

cost: .venv/stamp .venv/testing  ## what the core costs a packet, in instructions, function by function
	$(RUN) -m tools.cost

bench: build .venv/peers  ## what compares with others, in a few minutes
	$(RUN) -m tools.bench speed peers latency

bench-full: build .venv/peers  ## all measurements
	$(RUN) -m tools.bench

clean:  ## everything that was built
	rm -rf .venv build dist *.egg-info mrc/_core*.so tools/fabric/_fabric*.so tests/native/_build
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help build lint check test asan explore demo cost bench bench-full clean
