#include "frame.h"

namespace mlrun::ring {

namespace {

const char* const kDTypeNames[] = {"float32", "float64", "float16", "bfloat16", "int8",
                                   "uint8",   "int32",   "int64",   "bool"};
const char* const kOpNames[] = {"sum", "average", "min", "max", "product"};
const char* const kKindNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier",
                                  "split",      "send",      "recv"};

}  // namespace

std::string describe_call(const FrameHeader& header, std::string_view name) {
  std::string text = kKindNames[static_cast<int>(header.kind)];
  if (is_point_to_point(header.kind)) {
    text += " #" + std::to_string(header.sequence) + " of tag " + std::to_string(header.tag);
  } else {
    text += " #" + std::to_string(header.sequence);
  }
  if (header.group != 0) text += " of a split group";
  if (!name.empty()) text += " '" + std::string(name) + "'";
  if (header.kind == Kind::Barrier || header.kind == Kind::Split) return text;
  text += std::string(" (") + kDTypeNames[static_cast<int>(header.dtype)] + " x " + std::to_string(header.count);
  if (is_reduction(header.kind)) text += std::string(", ") + kOpNames[static_cast<int>(header.op)];
  if (header.wire != kNoWire) text += std::string(", ") + kDTypeNames[header.wire] + " on the wire";
  if (header.kind == Kind::Broadcast) text += ", root " + std::to_string(header.root);
  return text + ")";
}

bool same_call(const FrameHeader& a, const FrameHeader& b) {
  const uint64_t a_bytes = a.count * itemsize(a.dtype);
  const uint64_t b_bytes = b.count * itemsize(b.dtype);
  if (is_point_to_point(a.kind)) return a.kind != b.kind && a_bytes == b_bytes;
  if (a.kind != b.kind) return false;
  if (is_reduction(a.kind)) {
    return a.dtype == b.dtype && a.count == b.count && a.op == b.op && a.wire == b.wire;
  }
  if (a.kind == Kind::Split) return a.tag == b.tag;
  if (a.kind == Kind::AllToAll) return true;  // the parts are compared pair by pair
  return a_bytes == b_bytes && a.root == b.root;
}

}  // namespace mlrun::ring
