# Every target sets itself up: the first call makes .venv in the checkout and installs into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

NATIVE := $(wildcard mlrun/*/native/*.h mlrun/*/native/*.cpp)
CPP := $(NATIVE) $(wildcard tests/native/*.h tests/native/*.cpp)

.DEFAULT_GOAL := help
.PHONY: help install demo test cluster cluster-test tensorflow-test engines-test trainers-test s3-test torch-suite lint types format macos-compile sanitize soak bench clean

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(INSTALLED) ## train a small ResNet on real digits with 2 workers
	$(BIN)/mlrun launch configs/digits.yaml -np 2

test: $(INSTALLED) ## the tests that one machine is enough for
	$(BIN)/pytest --ignore=tests/cluster --ignore=tests/tensorflow --ignore=tests/engines \
		--ignore=tests/trainers --ignore=tests/s3

cluster: $(INSTALLED) ## a shell on the launcher of 4 hosts with an sshd each; needs Linux and root
	$(BIN)/python -m tests.cluster.cluster 4

cluster-test: $(INSTALLED) ## the tests on such hosts
	$(BIN)/pytest tests/cluster

tensorflow-test: $(INSTALLED) ## the tests that need TensorFlow, which this installs
	$(BIN)/python -m pip install -q -c constraints.txt tensorflow-cpu keras
	$(BIN)/pytest tests/tensorflow tests/engines

engines-test: $(INSTALLED) ## torch and TensorFlow on every engine; builds Horovod once, which takes minutes
	tools/horovod_wheel.sh $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt tensorflow-cpu keras
	$(BIN)/pytest tests/engines tests/allreduce/test_engines.py

trainers-test: $(INSTALLED) ## the tests that need accelerate and Lightning, which this installs
	$(BIN)/python -m pip install -q -c constraints.txt accelerate pytorch-lightning
	$(BIN)/pytest tests/trainers

s3-test: $(INSTALLED) ## a bucket as the source of a run, on a server of this machine, which this installs
	$(BIN)/python -m pip install -q -c constraints.txt s3fs 'moto[server]'
	$(BIN)/pytest tests/s3

torch-suite: $(INSTALLED) ## PyTorch's own tests of torch.distributed, on 3 and 4 ranks
	$(BIN)/python tools/torch_suite.py

lint: $(INSTALLED) ## ruff and clang-format, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))

format: $(INSTALLED) ## what lint asks for, done
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

types: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy

macos-compile: $(INSTALLED) ## cross-compile the native core for macOS arm64
	$(BIN)/python tools/macos_compile.py

sanitize: $(INSTALLED) ## the native core's own tests under the sanitizers
	PATH="$(abspath $(BIN)):$$PATH" tools/sanitize.sh

soak: $(INSTALLED) ## random collectives and faults on the ring, for 10 minutes
	$(BIN)/python benchmarks/soak.py --minutes 10

bench: $(INSTALLED) ## what mlrun costs over a bare PyTorch loop and over torchrun
	$(BIN)/python benchmarks/overhead.py

clean: ## remove what was built; .venv and runs stay
	rm -rf build dist wheelhouse .pytest_cache .mypy_cache .ruff_cache .hypothesis $(INSTALLED)
	find mlrun tests -name __pycache__ -prune -exec rm -rf {} +

install: $(INSTALLED) ## mlrun, editable, with all that the targets need

# Without build isolation the build folder stays valid, so that a changed source rebuilds alone.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard CMakeLists.txt) $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[torch,mpi,report,dev]'
	$(BIN)/python -m nanobind.stubgen -q -m mlrun.allreduce._ring -o mlrun/allreduce/_ring.pyi
	touch $@
