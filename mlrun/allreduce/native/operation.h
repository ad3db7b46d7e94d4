// One call under way, from its issue to its end. Guarded by the engine's mutex where not said otherwise.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frame.h"
#include "stream.h"

namespace mlrun::ring {

// The ranks of a communicator. Group 0 is the world.
struct Group {
  uint32_t id = 0;
  std::vector<int> ranks;  // world ranks
  int me = 0;              // own index in `ranks`

  // Guarded by the engine's mutex.
  uint64_t next_sequence = 0;
  uint32_t splits = 0;
  size_t small_under_way = 0;                     // announced payloads that a late rank may have to keep
  std::map<std::pair<int, int>, uint64_t> sends;  // by (peer, tag)
  std::map<std::pair<int, int>, uint64_t> receives;

  int size() const { return static_cast<int>(ranks.size()); }
  int index_of(int world_rank) const {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == world_rank) return static_cast<int>(i);
    }
    return -1;
  }
};

// What a caller asks for. Counts are elements; `source` and `target` are the same memory for in-place calls.
struct Request {
  Kind kind = Kind::Barrier;
  DType dtype = DType::UInt8;
  ReduceOp op = ReduceOp::Sum;
  uint8_t wire = kNoWire;
  int root = 0;  // a rank of the group; the peer of a send or receive
  int tag = 0;
  uint64_t count = 0;
  const char* source = nullptr;
  char* target = nullptr;
  std::vector<uint64_t> source_counts;  // all_to_all
  std::vector<uint64_t> target_counts;
  std::string name;
};

struct Operation {
  Request request;
  std::shared_ptr<Group> group;
  uint64_t sequence = 0;
  FrameHeader header;     // as announced
  bool small = false;     // the payload travels inside the announcements
  bool pairwise = false;  // so it does, but to the partners of pairwise.h only
  bool announced = false;

  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<char> scratch;
  // By rank of the group, once that rank has entered; a send or receive has its peer only.
  std::vector<std::optional<Frame>> entries;
  std::optional<Frame> partial;  // of a pairwise call: what went to the second partner
  std::vector<bool> present;     // of a pairwise call: who has said that it waits too
  size_t absent = 0;
  size_t unfinished_streams = 0;

  std::condition_variable progressed;  // something was sent
  int pins = 0;                        // threads that touch the caller's memory just now
  bool completing = false;
  bool done = false;
  std::optional<RingError> error;
  std::condition_variable ended;

  int64_t issued_ns = 0;
  int64_t first_ns = 0;
  int64_t last_ns = 0;
  int64_t progress_ns = 0;
  int64_t head_ns = 0;  // since when its group has waited for nothing else
  bool warned = false;

  // In a pairwise call the second partner's entry stands for the rank behind it.
  bool has_entered(size_t group_rank) const;
  std::string describe() const { return describe_call(header, request.name); }
};

}  // namespace mlrun::ring
