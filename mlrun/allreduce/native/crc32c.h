// CRC32C (Castagnoli, RFC 3720 appendix B.4), by the processor's own instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlrun::ring {

// Continues `crc` (0 to start) over `bytes` bytes.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace mlrun::ring
