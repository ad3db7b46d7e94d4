#include "schedule.h"

#include "kernels.h"

namespace mlrun::ring {

namespace {

constexpr uint64_t kSmallBytes = 64 << 10;
constexpr uint64_t kSmallTotalBytes = 256 << 10;  // what one rank gets from all announcements of a call
constexpr uint64_t kCallerBytes = 1 << 20;
constexpr uint64_t kScratchSlots = 4;
constexpr uint64_t kScratchSlotBytes = 512 << 10;
constexpr uint64_t kWindowBytes = 256 << 10;

uint64_t element_bytes(const Request& request) { return is_reduction(request.kind) ? itemsize(request.dtype) : 1; }

uint64_t element_count(const Request& request) {
  return is_reduction(request.kind) ? request.count : request.count * itemsize(request.dtype);
}

bool are_neighbours(int a, int b, int world_size) {
  const int distance = (b - a + world_size) % world_size;
  return distance == 1 || distance == world_size - 1;
}

class Scheduler {
 public:
  Scheduler(Operation& operation, int world_size)
      : operation_(operation),
        request_(operation.request),
        group_(*operation.group),
        world_size_(world_size),
        n_(group_.size()),
        bytes_(element_bytes(request_)),
        count_(element_count(request_)) {}

  // Above two ranks one half of the payload goes round each way, so that every cable is busy in both directions.
  int directions() const { return n_ > 2 ? 2 : 1; }

  void all_reduce() {
    for (int d = 0; d < directions(); ++d) {
      Stream& stream = ring_stream(d);
      const uint64_t low = count_ * d / directions();
      const uint64_t length = count_ * (d + 1) / directions() - low;
      const auto begin = [&](int chunk) { return low + length * chunk / n_; };
      const auto size = [&](int chunk) { return begin(chunk + 1) - begin(chunk); };
      const auto at = [&](int chunk) { return request_.target + begin(chunk) * bytes_; };
      std::vector<int64_t> sent_at;  // by step
      for (int step = 0; step < 2 * (n_ - 1); ++step) {
        sent_at.push_back(static_cast<int64_t>(stream.send_total));
        const int out = chunk_of(d, -step);
        stream.send(size(out), at(out), step == 0 ? kOwnData : last_run_start(stream));
        const int in = chunk_of(d, -step - 1);
        // The second half of the steps brings back, reduced, what the first half sent.
        const bool reduces = step < n_ - 1;
        stream.receive(size(in), at(in), reduces ? at(in) : nullptr, step == n_ - 2,
                       reduces ? kNothing : sent_at[static_cast<size_t>(step + 1 - n_)]);
      }
      add(stream);
    }
  }

  void reduce_scatter() {
    const uint64_t slot = std::max<uint64_t>(1, std::min(count_, kScratchSlotBytes / bytes_));
    if (n_ > 2) operation_.scratch.resize(static_cast<size_t>(directions()) * kScratchSlots * slot * bytes_);
    for (int d = 0; d < directions(); ++d) {
      Stream& stream = ring_stream(d);
      if (n_ > 2) stream.scratch_slots = kScratchSlots;
      const uint64_t low = count_ * d / directions();
      const uint64_t high = count_ * (d + 1) / directions();
      char* scratch = operation_.scratch.data() + d * kScratchSlots * slot * bytes_;
      uint64_t run = 0;
      for (uint64_t first = low; first < high; first += slot) {
        const uint64_t length = std::min(slot, high - first);
        const auto source = [&](int chunk) { return request_.source + (chunk * count_ + first) * bytes_; };
        const auto partial = [&](uint64_t k) { return scratch + (k % kScratchSlots) * slot * bytes_; };
        for (int step = 0; step < n_ - 1; ++step, ++run) {
          const bool last = step == n_ - 2;
          if (step == 0) {
            stream.send(length, source(chunk_of(d, -1)), kOwnData);
          } else {
            stream.send(length, partial(run - 1), last_run_start(stream));
          }
          stream.receive(length, last ? request_.target + first * bytes_ : partial(run), source(chunk_of(d, -step - 2)),
                         last);
        }
      }
      add(stream);
    }
  }

  void all_gather() {
    for (int d = 0; d < directions(); ++d) {
      Stream& stream = ring_stream(d);
      const uint64_t low = count_ * d / directions();
      const uint64_t length = count_ * (d + 1) / directions() - low;
      const auto at = [&](int chunk) { return request_.target + chunk * count_ + low; };
      for (int step = 0; step < n_ - 1; ++step) {
        if (step == 0) {
          stream.send(length, request_.source + low, kOwnData);
        } else {
          stream.send(length, at(chunk_of(d, -step)), last_run_start(stream));
        }
        stream.receive(length, at(chunk_of(d, -step - 1)), nullptr, false);
      }
      add(stream);
    }
  }

  void broadcast() {
    for (int d = 0; d < directions(); ++d) {
      Stream& stream = ring_stream(d);
      const uint64_t low = count_ * d / directions();
      const uint64_t length = count_ * (d + 1) / directions() - low;
      const int sign = d == 0 ? 1 : -1;
      const int hop = ((group_.me - request_.root) * sign % n_ + n_) % n_;
      if (hop == n_ - 1) stream.to = -1;
      if (hop == 0) stream.from = -1;
      if (hop < n_ - 1) stream.send(length, request_.source + low, hop == 0 ? kOwnData : 0);
      if (hop > 0) stream.receive(length, request_.target + low, nullptr, false);
      add(stream);
    }
  }

  void all_to_all() {
    const auto begin = [](const std::vector<uint64_t>& counts, int part) {
      uint64_t sum = 0;
      for (int i = 0; i < part; ++i) sum += counts[i];
      return sum;
    };
    const uint64_t size = itemsize(request_.dtype);
    for (int distance = 1; distance < n_; ++distance) {
      const int peer = (group_.me + distance) % n_;
      Stream& stream = new_stream(0);
      if (request_.source_counts[peer] > 0) stream.to = group_.ranks[peer];
      if (request_.target_counts[peer] > 0) stream.from = group_.ranks[peer];
      stream.send(request_.source_counts[peer] * size, request_.source + begin(request_.source_counts, peer) * size,
                  kOwnData);
      stream.receive(request_.target_counts[peer] * size, request_.target + begin(request_.target_counts, peer) * size,
                     nullptr, false);
      add(stream);
    }
  }

  void point_to_point() {
    Stream& stream = new_stream(0);
    const int peer = group_.ranks[request_.root];
    if (request_.kind == Kind::Send) {
      stream.to = peer;
      stream.send(count_, request_.source, kOwnData);
    } else {
      stream.from = peer;
      stream.receive(count_, request_.target, nullptr, false);
    }
    add(stream);
  }

 private:
  // The chunk `offset` places from the own one, in the direction of the flow.
  int chunk_of(int direction, int offset) const {
    const int sign = direction == 0 ? 1 : -1;
    return ((group_.me + sign * offset) % n_ + n_) % n_;
  }

  static int64_t last_run_start(const Stream& stream) {
    return stream.receive_runs.empty() ? 0 : static_cast<int64_t>(stream.receive_runs.back().start);
  }

  Stream& new_stream(int index) {
    operation_.streams.push_back(std::make_unique<Stream>());
    operation_.streams.back()->index = static_cast<uint8_t>(index);
    return *operation_.streams.back();
  }

  Stream& ring_stream(int direction) {
    Stream& stream = new_stream(direction);
    stream.to = group_.ranks[chunk_of(direction, 1)];
    stream.from = group_.ranks[chunk_of(direction, -1)];
    return stream;
  }

  void add(Stream& stream) {
    const int own = group_.ranks[group_.me];
    const uint64_t window = std::max<uint64_t>(1, kWindowBytes / wire_itemsize(request_));
    if (stream.to >= 0 && !are_neighbours(own, stream.to, world_size_)) stream.window_out = window;
    if (stream.from >= 0 && !are_neighbours(own, stream.from, world_size_)) stream.window_in = window;
    stream.open();
    if (stream.finished()) {
      operation_.streams.pop_back();
    } else {
      ++operation_.unfinished_streams;
    }
  }

  Operation& operation_;
  const Request& request_;
  const Group& group_;
  const int world_size_;
  const int n_;
  const uint64_t bytes_;
  const uint64_t count_;
};

// Reduces every rank's `count` elements, which start `offset` bytes into each announcement's body, in rank order.
void reduce_in_rank_order(Operation& operation, char* target, uint64_t offset) {
  const Request& request = operation.request;
  const char* first = operation.entries[0]->body() + offset;
  const bool narrowed = request.wire != kNoWire;
  if (narrowed) kernels().widen(static_cast<DType>(request.wire), target, first, request.count);
  for (size_t rank = 1; rank < operation.entries.size(); ++rank) {
    const char* incoming = operation.entries[rank]->body() + offset;
    if (narrowed) {
      kernels().reduce_wire(static_cast<DType>(request.wire), request.op, target, target, incoming, request.count);
    } else {
      kernels().reduce(request.dtype, request.op, target, rank == 1 ? first : target, incoming, request.count);
    }
  }
  if (request.op == ReduceOp::Average) {
    kernels().divide(request.dtype, target, request.count, operation.group->size());
  }
}

}  // namespace

uint64_t wire_itemsize(const Request& request) {
  if (!is_reduction(request.kind)) return 1;
  return request.wire == kNoWire ? itemsize(request.dtype) : itemsize(static_cast<DType>(request.wire));
}

bool is_for_callers(const Request& request) { return request.count * itemsize(request.dtype) <= kCallerBytes; }

bool travels_with_announcement(const Request& request, int ranks) {
  uint64_t bytes = element_count(request) * wire_itemsize(request);
  if (request.kind == Kind::AllToAll || is_point_to_point(request.kind)) return false;
  if (request.kind == Kind::ReduceScatter) bytes *= static_cast<uint64_t>(ranks);
  return bytes <= kSmallBytes && bytes * static_cast<uint64_t>(ranks) <= kSmallTotalBytes;
}

void make_streams(Operation& operation, int world_size) {
  Scheduler scheduler(operation, world_size);
  switch (operation.request.kind) {
    case Kind::AllReduce:
      return scheduler.all_reduce();
    case Kind::ReduceScatter:
      return scheduler.reduce_scatter();
    case Kind::AllGather:
      return scheduler.all_gather();
    case Kind::Broadcast:
      return scheduler.broadcast();
    case Kind::AllToAll:
      return scheduler.all_to_all();
    case Kind::Send:
    case Kind::Receive:
      return scheduler.point_to_point();
    case Kind::Barrier:
    case Kind::Split:
      return;
  }
}

void finish_small(Operation& operation) {
  const Request& request = operation.request;
  const uint64_t bytes = element_count(request);
  switch (request.kind) {
    case Kind::AllReduce:
      return reduce_in_rank_order(operation, request.target, 0);
    case Kind::ReduceScatter:
      return reduce_in_rank_order(operation, request.target,
                                  static_cast<uint64_t>(operation.group->me) * request.count * wire_itemsize(request));
    case Kind::AllGather:
      for (size_t rank = 0; rank < operation.entries.size(); ++rank) {
        copy(request.target + rank * bytes, operation.entries[rank]->body(), bytes);
      }
      return;
    case Kind::Broadcast:
      if (operation.group->me != request.root) {
        copy(request.target, operation.entries[static_cast<size_t>(request.root)]->body(), bytes);
      }
      return;
    default:
      return;
  }
}

}  // namespace mlrun::ring
