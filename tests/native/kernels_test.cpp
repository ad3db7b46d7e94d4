#include "kernels.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "crc32c.h"

using namespace mlrun::ring;

namespace {

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all = {&baseline::table, &kernels()};
  return all;
}

float widened(const Kernels& k, DType wire, uint16_t value) {
  float result;
  k.widen(wire, &result, &value, 1);
  return result;
}

}  // namespace

// Every 16-bit float comes back from float32 as it was; NaNs stay NaNs.
TEST(sixteen_bit_floats_survive_widening) {
  for (const Kernels* k : all_kernels()) {
    for (const DType wire : {DType::Float16, DType::BFloat16}) {
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto value = static_cast<uint16_t>(bits);
        const float wide = widened(*k, wire, value);
        uint16_t back;
        k->narrow(wire, &back, &wide, 1);
        CHECK(std::isnan(wide) ? std::isnan(widened(*k, wire, back)) : back == value);
      }
    }
  }
}

// Halfway values go to the even neighbour, others to the nearer one.
TEST(narrowing_rounds_to_nearest_even) {
  for (const Kernels* k : all_kernels()) {
    for (const DType wire : {DType::Float16, DType::BFloat16}) {
      const uint16_t largest = wire == DType::Float16 ? 0x7bff : 0x7f7f;
      for (uint16_t low = 0; low < largest; ++low) {
        const float a = widened(*k, wire, low);
        const float b = widened(*k, wire, static_cast<uint16_t>(low + 1));
        const float middle = a + (b - a) / 2;
        const float inputs[3] = {middle, std::nextafterf(middle, a), std::nextafterf(middle, b)};
        uint16_t out[3];
        k->narrow(wire, out, inputs, 3);
        CHECK(out[0] == (low % 2 == 0 ? low : low + 1));
        CHECK(inputs[1] == middle || out[1] == low);
        CHECK(inputs[2] == middle || out[2] == low + 1);
      }
    }
  }
}

TEST(unaligned_and_odd_lengths_are_reduced) {
  for (const Kernels* k : all_kernels()) {
    for (uint64_t count = 0; count < 70; ++count) {
      std::vector<char> memory(3 * 8 * 80);
      char* target = memory.data() + 1;
      char* incoming = memory.data() + 8 * 80 + 3;
      for (uint64_t i = 0; i <= count; ++i) {
        const double own = static_cast<double>(i);
        const double in = 100.0;
        std::memcpy(target + 8 * i, &own, 8);
        std::memcpy(incoming + 8 * i, &in, 8);
      }
      k->reduce(DType::Float64, ReduceOp::Sum, target, target, incoming, count);
      for (uint64_t i = 0; i <= count; ++i) {
        double value;
        std::memcpy(&value, target + 8 * i, 8);
        CHECK(value == static_cast<double>(i) + (i < count ? 100.0 : 0.0));
      }
    }
  }
}

TEST(signed_sums_wrap_and_averages_truncate) {
  for (const Kernels* k : all_kernels()) {
    int32_t value = INT32_MAX;
    const int32_t one = 1;
    k->reduce(DType::Int32, ReduceOp::Sum, &value, &value, &one, 1);
    CHECK(value == INT32_MIN);
    int64_t sum = -7;
    k->divide(DType::Int64, &sum, 1, 2);
    CHECK(sum == -3);
  }
}

TEST(nan_is_never_lost) {
  for (const Kernels* k : all_kernels()) {
    for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Product}) {
      float values[2] = {NAN, 1};
      const float incoming[2] = {1, NAN};
      k->reduce(DType::Float32, op, values, values, incoming, 2);
      CHECK(std::isnan(values[0]) && std::isnan(values[1]));
    }
  }
}

// RFC 3720 B.4: 32 bytes of zeros, and the bytes 0 to 31.
TEST(crc32c_knows_the_standard_values) {
  unsigned char bytes[32] = {};
  CHECK(crc32c(0, bytes, 32) == 0x8a9136aa);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(i);
  CHECK(crc32c(0, bytes, 32) == 0x46dd794e);
  CHECK(crc32c(crc32c(0, bytes, 11), bytes + 11, 21) == 0x46dd794e);
}
