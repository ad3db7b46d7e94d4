// What travels on a link: a fixed header, then `payload_bytes` of payload. Little-endian, naturally aligned.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "types.h"

namespace mlrun::ring {

enum class FrameType : uint8_t { Announce, Data, Credit, Heartbeat, Abort, Goodbye };

constexpr uint32_t kMagic = 0x474e5252;
constexpr uint8_t kVersion = 1;
constexpr uint8_t kNoWire = 255;
constexpr int32_t kEveryone = -1;
constexpr uint8_t kPresent = 255;  // the stream of an announcement that carries nothing: its rank waits in the call

struct FrameHeader {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  FrameType type = FrameType::Heartbeat;
  Kind kind = Kind::Barrier;  // in an Abort frame: the Failure
  uint8_t stream = 0;
  uint32_t generation = 0;
  uint32_t group = 0;
  uint64_t sequence = 0;
  int32_t source = 0;
  int32_t destination = kEveryone;
  uint32_t payload_bytes = 0;
  uint16_t hops = 0;  // for kEveryone: how many more ranks are to get it
  uint16_t name_bytes = 0;
  uint64_t count = 0;
  DType dtype = DType::UInt8;
  uint8_t wire = kNoWire;
  ReduceOp op = ReduceOp::Sum;
  uint8_t checked = 0;  // 1: `checksum` holds a CRC32C over the header (with checksum 0) and the payload
  int32_t root = 0;
  int32_t tag = 0;
  uint32_t checksum = 0;
  uint64_t offset = 0;  // Data: first element of the stream; Credit: how far the stream may go
  int64_t sent_ns = 0;  // simulated delay only
};
static_assert(sizeof(FrameHeader) == 80);

// An owned frame: queued, passed on, or kept until this rank enters.
struct Frame {
  FrameHeader header;
  std::shared_ptr<char[]> payload;

  std::string_view name() const { return {payload.get(), header.name_bytes}; }
  const char* body() const { return payload.get() + header.name_bytes; }
};

inline std::shared_ptr<char[]> allocate_payload(size_t bytes) { return std::shared_ptr<char[]>(new char[bytes]); }

inline bool is_point_to_point(Kind kind) { return kind == Kind::Send || kind == Kind::Receive; }
inline bool is_reduction(Kind kind) { return kind == Kind::AllReduce || kind == Kind::ReduceScatter; }

// The call as a person wrote it: "all_reduce #3 'layer1' (float32 x 100, sum)".
std::string describe_call(const FrameHeader& header, std::string_view name);

// Whether two ranks' announcements of one sequence number are the same call.
bool same_call(const FrameHeader& a, const FrameHeader& b);

}  // namespace mlrun::ring
