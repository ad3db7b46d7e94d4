#!/bin/sh
# Horovod for the torch of the given Python, on the CPU with Gloo: built once into build/wheels, and installed.
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
version=0.28.1
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
wheels=$PWD/build/wheels/torch-$("$python" -c 'import torch; print(torch.__version__)')
if ! ls "$wheels"/horovod-$version-*.whl >/dev/null 2>&1; then
  mkdir -p "$wheels"
  "$python" -m pip install -q setuptools wheel packaging
  # Horovod asks the compiler for C++14, and torch's headers need C++17: the last option counts.
  printf '#!/bin/sh\nexec %s "$@" -std=gnu++17\n' "${CXX:-c++}" >"$wheels/cxx17"
  chmod +x "$wheels/cxx17"
  env CXX="$wheels/cxx17" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
    "$python" -m pip wheel -q --no-build-isolation --no-deps --no-binary horovod -w "$wheels" "horovod==$version"
fi
"$python" -m pip install -q cloudpickle pyyaml
"$python" -m pip install -q --no-deps "$wheels"/horovod-$version-*.whl
