#include "kernels.h"

namespace mlrun::ring {

namespace {

const Kernels* widest() {
#ifdef MLRUN_X86_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return &x86_64_v4::table;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma")) {
    return &x86_64_v3::table;
  }
#endif
  return &baseline::table;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* const chosen = widest();
  return *chosen;
}

}  // namespace mlrun::ring
