// Compiled once per instruction set: MLRUN_KERNELS names the namespace.
#include "kernels.h"

#include <cstring>

#ifndef MLRUN_KERNELS
#define MLRUN_KERNELS baseline
#endif

namespace mlrun::ring {
namespace MLRUN_KERNELS {
namespace {

// Users' buffers may start anywhere, so elements are read as if they were unaligned.
template <typename T>
struct Unaligned {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <typename T>
using unaligned = typename Unaligned<T>::type;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// A storage type says how an element lies in memory and in which type it is computed.
template <typename Stored, typename Computed = Stored>
struct Plain {
  using storage = Stored;
  using compute = Computed;
  static compute load(storage value) { return static_cast<compute>(value); }
  static storage store(compute value) { return static_cast<storage>(value); }
};

struct BFloat16 {
  using storage = uint16_t;
  using compute = float;
  static float load(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }
  static uint16_t store(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
};

struct Float16 {
  using storage = uint16_t;
  using compute = float;
  // The 15 bits below the sign, moved to float32's place, are the value times 2^-112, subnormals included.
  static float load(uint16_t value) {
    const uint32_t magnitude = static_cast<uint32_t>(value & 0x7fff) << 13;
    const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;
    return float_of(scaled | special | (static_cast<uint32_t>(value & 0x8000) << 16));
  }
  // Below 2^-14 the result is subnormal: adding 0.5, whose last bit is worth 2^-24, rounds to that step.
  static uint16_t store(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
    result = magnitude >= 0x47800000 ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000));
  }
};

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
};
// A NaN on either side is the result, as in numpy and torch.
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct Or {
  static uint8_t apply(uint8_t a, uint8_t b) { return (a | b) != 0; }
};
struct And {
  static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};

template <typename Own, typename Incoming, typename Operation>
void reduce_run(void* target, const void* operand, const void* incoming, uint64_t count) {
  auto* out = static_cast<unaligned<typename Own::storage>*>(target);
  auto* own = static_cast<const unaligned<typename Own::storage>*>(operand);
  auto* in = static_cast<const unaligned<typename Incoming::storage>*>(incoming);
  // `out` and `own` may be one and the same, and never overlap otherwise; `in` is scratch.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
  for (uint64_t i = 0; i < count; ++i) {
    out[i] = Own::store(Operation::apply(Own::load(own[i]), Incoming::load(in[i])));
  }
}

template <typename Own, typename Incoming>
void reduce_numbers(ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return reduce_run<Own, Incoming, Sum>(target, operand, incoming, count);
    case ReduceOp::Min:
      return reduce_run<Own, Incoming, Min>(target, operand, incoming, count);
    case ReduceOp::Max:
      return reduce_run<Own, Incoming, Max>(target, operand, incoming, count);
    case ReduceOp::Product:
      return reduce_run<Own, Incoming, Product>(target, operand, incoming, count);
  }
}

// Sums and products of signed integers wrap around: they are computed unsigned.
template <typename Signed, typename Wrapping>
void reduce_integers(ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count) {
  if (op == ReduceOp::Min || op == ReduceOp::Max) {
    return reduce_numbers<Plain<Signed>, Plain<Signed>>(op, target, operand, incoming, count);
  }
  reduce_numbers<Plain<Wrapping>, Plain<Wrapping>>(op, target, operand, incoming, count);
}

void reduce(DType dtype, ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count) {
  switch (dtype) {
    case DType::Float32:
      return reduce_numbers<Plain<float>, Plain<float>>(op, target, operand, incoming, count);
    case DType::Float64:
      return reduce_numbers<Plain<double>, Plain<double>>(op, target, operand, incoming, count);
    case DType::Float16:
      return reduce_numbers<Float16, Float16>(op, target, operand, incoming, count);
    case DType::BFloat16:
      return reduce_numbers<BFloat16, BFloat16>(op, target, operand, incoming, count);
    case DType::Int8:
      return reduce_integers<int8_t, uint8_t>(op, target, operand, incoming, count);
    case DType::UInt8:
      return reduce_numbers<Plain<uint8_t>, Plain<uint8_t>>(op, target, operand, incoming, count);
    case DType::Int32:
      return reduce_integers<int32_t, uint32_t>(op, target, operand, incoming, count);
    case DType::Int64:
      return reduce_integers<int64_t, uint64_t>(op, target, operand, incoming, count);
    case DType::Bool:
      if (op == ReduceOp::Sum || op == ReduceOp::Max) {
        return reduce_run<Plain<uint8_t>, Plain<uint8_t>, Or>(target, operand, incoming, count);
      }
      return reduce_run<Plain<uint8_t>, Plain<uint8_t>, And>(target, operand, incoming, count);
  }
}

void reduce_wire(DType wire, ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count) {
  if (wire == DType::Float16) return reduce_numbers<Plain<float>, Float16>(op, target, operand, incoming, count);
  reduce_numbers<Plain<float>, BFloat16>(op, target, operand, incoming, count);
}

template <typename Format>
void divide_floats(void* target, uint64_t count, int ranks) {
  auto* out = static_cast<unaligned<typename Format::storage>*>(target);
  const auto divisor = static_cast<typename Format::compute>(ranks);
  for (uint64_t i = 0; i < count; ++i) out[i] = Format::store(Format::load(out[i]) / divisor);
}

template <typename Integer>
void divide_integers(void* target, uint64_t count, int ranks) {
  auto* out = static_cast<unaligned<Integer>*>(target);
  for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<Integer>(out[i] / ranks);
}

void divide(DType dtype, void* target, uint64_t count, int ranks) {
  switch (dtype) {
    case DType::Float32:
      return divide_floats<Plain<float>>(target, count, ranks);
    case DType::Float64:
      return divide_floats<Plain<double>>(target, count, ranks);
    case DType::Float16:
      return divide_floats<Float16>(target, count, ranks);
    case DType::BFloat16:
      return divide_floats<BFloat16>(target, count, ranks);
    case DType::Int8:
      return divide_integers<int8_t>(target, count, ranks);
    case DType::UInt8:
      return divide_integers<uint8_t>(target, count, ranks);
    case DType::Int32:
      return divide_integers<int32_t>(target, count, ranks);
    case DType::Int64:
      return divide_integers<int64_t>(target, count, ranks);
    case DType::Bool:
      return;  // refused where the call is made
  }
}

template <typename From, typename To>
void convert_run(void* target, const void* source, uint64_t count) {
  auto* out = static_cast<unaligned<typename To::storage>*>(target);
  auto* in = static_cast<const unaligned<typename From::storage>*>(source);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
  for (uint64_t i = 0; i < count; ++i) out[i] = To::store(From::load(in[i]));
}

void narrow(DType wire, void* target, const void* source, uint64_t count) {
  if (wire == DType::Float16) return convert_run<Plain<float>, Float16>(target, source, count);
  convert_run<Plain<float>, BFloat16>(target, source, count);
}

void widen(DType wire, void* target, const void* source, uint64_t count) {
  if (wire == DType::Float16) return convert_run<Float16, Plain<float>>(target, source, count);
  convert_run<BFloat16, Plain<float>>(target, source, count);
}

}  // namespace

extern const Kernels table;
const Kernels table = {reduce, reduce_wire, divide, narrow, widen};

}  // namespace MLRUN_KERNELS
}  // namespace mlrun::ring
