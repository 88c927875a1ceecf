# Two commands do all the set-up: make demo, make test. The work is in tools/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo demo-cpp test test-long fresh check lint format bench asan tsan chaos fuzz spark35 hdfs docs install clean

export ORCA_START := $(or $(ORCA_START),$(shell date +%s))
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH

PREFIX ?= /usr/local
PYTHON := .venv/bin/python

help: ## this list
	@echo "make demo and make test do all the set-up (packages by apt, .venv, build/)."
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: ## install distribution packages and the Python environment of versions/
	@tools/setup.sh

build: setup ## engine, Python module and torch plugin (release) in build/release
	@tools/build.sh release

demo: setup ## train LeNet on Fashion-MNIST with an Estimator, one worker per core
	@tools/build.sh release python_package
	@$(PYTHON) tools/demo.py

demo-cpp: setup ## the same with the Estimator of C++, built against the installed package
	@tools/build.sh release python_package cxx_package
	@$(PYTHON) tools/demo.py --cpp

test: setup ## lint, C++, Python, package (FULL=1: also sanitizers, and a fifth of the long tests)
	@$(PYTHON) tools/run_tests.py $(if $(FULL),full,all)

test-long: build ## the long tests; what passed for this tree is not run again (LONG=--again: all)
	@$(PYTHON) tools/test_long.py $(LONG)

fresh: ## .ci/run in a fresh clone of HEAD; notes in build/passed that this tree passed
	@tools/fresh.sh

check: setup ## the everyday loop: build, fast tests, quick lint (under 2 minutes)
	@$(PYTHON) tools/run_tests.py check

lint: setup ## clang-format, clang-tidy on what changed (LINT_ALL=1: all), ruff, mypy, rooms
	@$(PYTHON) tools/run_tests.py lint

format: setup ## rewrite sources as clang-format and ruff want them
	@$(PYTHON) tools/lint.py --fix

asan: setup ## C++ tests with address and undefined-behaviour sanitizers
	@$(PYTHON) tools/run_tests.py asan

tsan: setup ## C++ tests with the thread sanitizer
	@$(PYTHON) tools/run_tests.py tsan

chaos: build ## CHAOS (10000) random schedules of deaths: no bit may differ, every row counts once
	@$(PYTHON) tools/chaos.py

fuzz: setup ## fuzz each parser for FUZZ_SECONDS (60), starting from the corpus
	@tools/build.sh fuzz
	@$(PYTHON) tools/fuzz.py

spark35: build ## the tests of DataFrames with pyspark 3.5
	@tools/spark35.sh

hdfs: build ## the tests of HDFS, with a NameNode and a DataNode from Maven Central
	@tools/hdfs.sh

bench: build ## benchmarks against their peers (BENCH="--only ddp" for some)
	@$(PYTHON) bench/run.py $(BENCH)

docs: setup ## check the links and commands that the documents name
	@$(PYTHON) tools/check_docs.py

install: setup ## headers, library and CMake package into PREFIX (/usr/local)
	@tools/build.sh release cxx_package
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove build/ (.venv stays)
	rm -rf build python/orca/_native
