#!/bin/sh
# The native core's own tests under ThreadSanitizer, and under AddressSanitizer with UBSan.
set -eu
cd "$(dirname "$0")/.."
for sanitizers in ${1:-thread address,undefined}; do
  folder=build/native-$(echo "$sanitizers" | tr , -)
  cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMLRUN_SANITIZE="$sanitizers" >/dev/null
  cmake --build "$folder" -j2
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 ctest --test-dir "$folder" --output-on-failure
done
