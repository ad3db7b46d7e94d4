// Element types, reductions and errors shared by the whole core. Enum values are part of the wire format
// and equal those of communicator.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

namespace mlrun::ring {

enum class DType : uint8_t { Float32, Float64, Float16, BFloat16, Int8, UInt8, Int32, Int64, Bool };
enum class ReduceOp : uint8_t { Sum, Average, Min, Max, Product };
enum class Kind : uint8_t { AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll, Barrier, Split, Send, Receive };

inline uint64_t itemsize(DType dtype) {
  constexpr uint8_t sizes[] = {4, 8, 2, 2, 1, 1, 4, 8, 1};
  return sizes[static_cast<int>(dtype)];
}

constexpr uint8_t kDTypes = 9;
constexpr uint8_t kReduceOps = 5;
constexpr uint8_t kKinds = 9;

// Why a communicator failed; one Python exception class each.
enum class Failure : uint8_t { Mismatch, PeerLost, Deadline, Aborted };

class RingError : public std::runtime_error {
 public:
  RingError(Failure why, const std::string& text) : std::runtime_error(text), failure(why) {}
  Failure failure;
};

// Empty buffers may have no address at all, which memcpy doesn't take.
inline void copy(void* target, const void* source, size_t bytes) {
  if (bytes > 0) std::memmove(target, source, bytes);
}

// CLOCK_MONOTONIC in nanoseconds: the clock of Python's time.monotonic() on Linux; on macOS, where that one is
// mach_absolute_time, CLOCK_UPTIME_RAW is the same clock.
inline int64_t now_ns() {
  timespec t;
#ifdef __APPLE__
  clock_gettime(CLOCK_UPTIME_RAW, &t);
#else
  clock_gettime(CLOCK_MONOTONIC, &t);
#endif
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace mlrun::ring
