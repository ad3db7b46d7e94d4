#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace mlrun::ring {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
    table[byte] = value;
  }
  return table;
}

[[maybe_unused]] uint32_t by_table(uint32_t crc, const unsigned char* data, size_t bytes) {
  static constexpr auto table = make_table();
  for (size_t i = 0; i < bytes; ++i) crc = table[(crc ^ data[i]) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const unsigned char* data, size_t bytes) {
  uint64_t value = crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    value = _mm_crc32_u64(value, word);
  }
  crc = static_cast<uint32_t>(value);
  for (; bytes > 0; --bytes, ++data) crc = _mm_crc32_u8(crc, *data);
  return crc;
}
#elif defined(__ARM_FEATURE_CRC32)
uint32_t by_instruction(uint32_t crc, const unsigned char* data, size_t bytes) {
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    crc = __crc32cd(crc, word);
  }
  for (; bytes > 0; --bytes, ++data) crc = __crc32cb(crc, *data);
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  auto* first = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return ~(has_instruction ? by_instruction(~crc, first, bytes) : by_table(~crc, first, bytes));
#elif defined(__ARM_FEATURE_CRC32)
  return ~by_instruction(~crc, first, bytes);
#else
  return ~by_table(~crc, first, bytes);
#endif
}

}  // namespace mlrun::ring
