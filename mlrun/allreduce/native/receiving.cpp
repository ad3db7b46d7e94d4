// What comes in: announcements are matched with the own calls, data goes to its place, the rest is passed on.
#include <algorithm>
#include <cstring>
#include <thread>

#include "crc32c.h"
#include "engine.h"
#include "kernels.h"
#include "schedule.h"

namespace mlrun::ring {

namespace {

constexpr uint64_t kLargestPayload = 1 << 20;
// A waiting caller makes the progress itself: it spins until nothing has come for so long, which is short where ranks
// share cores, then sleeps on its sockets. The receiving threads stay away a little longer, since the next call is
// likely to follow at once.
constexpr int64_t kSpinNs = 150000;
constexpr int64_t kCrowdedSpinNs = 10000;
constexpr int64_t kStayNs = 5000000;
constexpr int kGlanceMs = 1;  // how late a caller asleep on its sockets may notice what another thread has done
constexpr int64_t kClaimNs = 500000;
constexpr auto kParked = std::chrono::milliseconds(1);
constexpr uint64_t kReduceBytes = 128 << 10;  // reduced while it is in cache

}  // namespace

void Engine::receive_loop(Link& link, Lane& lane) {
  while (true) {
    lane.readable(-1);
    {
      Lock lock(mutex_);
      while (!stopping_ && !failed_ && (lane.receiving || now_ns() < lane.claimed_until_ns)) {
        lane.wake_receiver.wait_for(lock, kParked);
      }
      if (stopping_ || failed_) return;
      // Whoever was here meanwhile may have taken what there was.
      if (!lane.has_read_ahead() && !lane.readable(0)) continue;
      lane.receiving = true;
    }
    bool going = true;
    do {
      going = receive_one(link, lane);
    } while (going && lane.has_read_ahead());
    Lock lock(mutex_);
    lane.receiving = false;
    if (!going) return;
  }
}

// The waiting caller sends and takes in what comes, without a change of threads, as long as something comes soon.
void Engine::make_progress(Operation& operation, Lock& lock) {
  if (failed_ || !callers_progress_ || !is_for_callers(operation.request)) return;
  std::vector<Link*> taken;
  const auto take = [&](Link& link) {
    Lane& lane = link.first();
    lane.claimed_until_ns = now_ns() + kClaimNs;
    if (lane.receiving || link.closed || std::find(taken.begin(), taken.end(), &link) != taken.end()) return;
    lane.receiving = true;
    taken.push_back(&link);
  };
  const int64_t spin_ns = crowded_ ? kCrowdedSpinNs : kSpinNs;
  const auto may_sleep = [&] { return taken.size() == links_.size() && links_[0]->lanes.size() == 1; };
  int64_t idle_since = now_ns();
  int64_t idle_ns = 0;
  bool going = true;
  while (going && !failed_ && !operation.done && idle_ns < (may_sleep() ? kStayNs : spin_ns)) {
    const DirectSending direct(true);
    bool moved = false;
    for (auto& link : links_) {
      Lane& lane = link->first();
      take(*link);
      while (!lane.sending && !lane.has_backlog() && send_stream(*link, lane, lock, true)) moved = true;
    }
    send_control_now(lock);
    lock.unlock();
    for (Link* link : taken) {
      if (!going || !link->first().has_input()) continue;
      going = receive_one(*link, link->first());
      moved = true;
    }
    if (!moved && idle_ns < spin_ns) {
      std::this_thread::yield();
    } else if (!moved) {
      wait_for_input(taken, kGlanceMs);
    }
    if (moved) idle_since = now_ns();
    idle_ns = now_ns() - idle_since;
    lock.lock();
  }
  // The threads go on with what is left.
  DirectSending::owed = !sending_.empty();
  send_control_now(lock);
  const bool soon_again = going && operations_.empty();
  for (Link* link : taken) link->first().receiving = false;
  for (auto& link : links_) {
    link->first().claimed_until_ns = soon_again ? now_ns() + kClaimNs : 0;
    if (!soon_again) link->first().wake_receiver.notify_all();
  }
}

// Takes one frame; false once the link has ended.
bool Engine::receive_one(Link& link, Lane& lane) {
  FrameHeader header;
  if (lane.receive(&header, sizeof header) != Transfer::Done) {
    Lock lock(mutex_);
    lost_receiving(link, lane, lock);
    return false;
  }
  if (!accept_header(link, header)) return false;
  if (header.sent_ns != 0) {
    const int64_t wait_ns = header.sent_ns + static_cast<int64_t>(config_.pace_delay_s * 1e9) - now_ns();
    if (wait_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait_ns));
  }
  if (header.type == FrameType::Data) {
    return header.destination == rank_ ? take_data(link, lane, header) : pass_on(link, lane, header);
  }
  Frame frame{header, nullptr};
  if (!read_payload(link, lane, frame)) return false;
  Lock lock(mutex_);
  if (header.destination != rank_ && header.destination != kEveryone) {
    push_control(link_towards(header.destination), std::move(frame));
    return true;
  }
  if (header.destination == kEveryone && header.hops > 1 && links_.size() > 1) {
    Frame onward = frame;
    --onward.header.hops;
    push_control(*links_[&link == links_[0].get() ? 1 : 0], std::move(onward));
  }
  switch (header.type) {
    case FrameType::Announce:
      take_announcement(std::move(frame), lock);
      return true;
    case FrameType::Credit:
      take_credit(header);
      return true;
    case FrameType::Abort:
      fail(static_cast<Failure>(header.tag & 3), std::string(frame.payload.get(), header.payload_bytes), lock);
      return true;
    case FrameType::Goodbye:
      departed_[static_cast<size_t>(header.source)] = true;
      changed_.notify_all();
      check_departed(lock);
      return true;
    default:
      return true;
  }
}

// Anything that this version doesn't send is a broken stream.
bool Engine::accept_header(Link& link, FrameHeader& header) {
  const auto known_rank = [&](int rank) { return rank >= 0 && rank < size_; };
  const bool right = header.magic == kMagic && header.version == kVersion && header.generation == config_.generation &&
                     header.type <= FrameType::Goodbye && static_cast<uint8_t>(header.kind) < kKinds &&
                     static_cast<uint8_t>(header.dtype) < kDTypes && static_cast<uint8_t>(header.op) < kReduceOps &&
                     (header.wire == kNoWire || header.wire < kDTypes) && known_rank(header.source) &&
                     (known_rank(header.destination) || header.destination == kEveryone) &&
                     header.payload_bytes <= kLargestPayload && header.name_bytes <= header.payload_bytes;
  if (right) return true;
  Lock lock(mutex_);
  if (!failed_ && !stopping_) {
    fail(Failure::PeerLost,
         who(rank_) + " received bytes from " + who(link.peer) + " that aren't a frame of this run" + where(), lock);
  }
  return false;
}

bool Engine::verify(Link& link, const FrameHeader& header, const void* payload) {
  if (header.checked == 0) return true;
  FrameHeader plain = header;
  plain.checksum = 0;
  if (crc32c(crc32c(0, &plain, sizeof plain), payload, header.payload_bytes) == header.checksum) return true;
  Lock lock(mutex_);
  if (!failed_ && !stopping_) {
    fail(Failure::PeerLost,
         who(rank_) + " received a frame from " + who(link.peer) + " whose checksum is wrong" + where(), lock);
  }
  return false;
}

bool Engine::read_payload(Link& link, Lane& lane, Frame& frame) {
  frame.payload = allocate_payload(frame.header.payload_bytes);
  if (lane.receive(frame.payload.get(), frame.header.payload_bytes) == Transfer::Done) {
    return verify(link, frame.header, frame.payload.get());
  }
  Lock lock(mutex_);
  lost_receiving(link, lane, lock);
  return false;
}

bool Engine::pass_on(Link& link, Lane& lane, const FrameHeader& header) {
  Frame frame{header, nullptr};
  if (!read_payload(link, lane, frame)) return false;
  Lock lock(mutex_);
  Link& onward = link_towards(header.destination);
  onward.forwarded.push_back(std::move(frame));
  wake_senders(onward);
  return true;
}

// The own call that a frame belongs to: a send meets a receive, a collective the one of its number.
Engine::CallKey Engine::key_of(const FrameHeader& header) {
  if (!is_point_to_point(header.kind)) return {header.group, -1, header.sequence, 0, 0};
  const Kind own = header.kind == Kind::Send ? Kind::Receive : Kind::Send;
  return {header.group, static_cast<int>(own), header.sequence, header.source, header.tag};
}

std::shared_ptr<Operation> Engine::find(const FrameHeader& header) const {
  const auto found = operations_.find(key_of(header));
  return found == operations_.end() ? nullptr : found->second;
}

void Engine::take_announcement(Frame frame, Lock& lock) {
  if (failed_) return;
  const auto operation = find(frame.header);
  if (operation) {
    enter(operation, std::move(frame), lock);
    return;
  }
  if (frame.header.stream == kPresent) return;
  const std::pair key{key_of(frame.header), frame.header.source};
  early_.emplace(key, std::move(frame));
}

// Another rank is in this call.
void Engine::enter(const std::shared_ptr<Operation>& operation, Frame frame, Lock& lock) {
  const int source = frame.header.source;
  const auto index = static_cast<size_t>(operation->group->index_of(source));
  const auto me = static_cast<size_t>(operation->group->me);
  const auto theirs = [&] { return describe_call(frame.header, frame.name()); };
  if (!same_call(operation->header, frame.header)) {
    fail(Failure::Mismatch,
         who(rank_) + " called " + operation->describe() + ", but " + who(source) + " called " + theirs(), lock);
    return;
  }
  if (operation->request.kind == Kind::AllToAll) {
    uint64_t expected = 0;
    if (frame.header.payload_bytes - frame.header.name_bytes == operation->entries.size() * sizeof expected) {
      std::memcpy(&expected, frame.body() + me * sizeof expected, sizeof expected);
    }
    const uint64_t sends = operation->request.source_counts[index];
    if (expected * itemsize(frame.header.dtype) != sends * itemsize(operation->request.dtype)) {
      fail(Failure::Mismatch,
           who(rank_) + " sends " + std::to_string(sends) + " elements to " + who(source) + ", which expects " +
               std::to_string(expected) + ", in " + operation->describe(),
           lock);
      return;
    }
  }
  if (frame.header.stream == kPresent) {
    if (operation->pairwise) operation->present[index] = true;
    return;
  }
  if (operation->entries[index]) return;
  operation->entries[index] = std::move(frame);
  operation->progress_ns = now_ns();
  --operation->absent;
  for (auto& stream : operation->streams) {
    if (stream->to == source) wake_senders(link_towards(source));
  }
  if (operation->pairwise) push_partial(*operation);
  complete_if_ready(operation, lock);
}

void Engine::take_credit(const FrameHeader& header) {
  const auto operation = find(header);
  if (!operation) return;
  for (auto& stream : operation->streams) {
    if (stream->index == header.stream && stream->to == header.source) {
      stream->granted = std::min(std::max(stream->granted, header.offset), stream->send_total);
      wake_senders(link_towards(stream->to));
    }
  }
}

// Receives a segment and reduces it into its place, a part that fits the cache at a time.
bool Engine::store(Link& link, Lane& lane, const Operation& operation, const ReceiveRun& run,
                   const FrameHeader& header) {
  const Request& request = operation.request;
  const bool wire = is_reduction(request.kind) && request.wire != kNoWire;
  const uint64_t item = is_reduction(request.kind) ? itemsize(request.dtype) : 1;
  const uint64_t wire_item = wire_itemsize(request);
  const bool direct = run.operand == nullptr && !wire;
  const uint64_t total = header.payload_bytes / wire_item;
  // A checksum is over the whole frame, and nothing unchecked may be reduced.
  const uint64_t part = direct || header.checked != 0 ? total : kReduceBytes / wire_item;
  if (!direct && lane.receive_scratch.size() < part * wire_item) lane.receive_scratch.resize(part * wire_item);
  for (uint64_t done = 0; done < total; done += part) {
    const uint64_t count = std::min(part, total - done);
    const uint64_t skip = (header.offset - run.start + done) * item;
    char* target = run.target + skip;
    char* incoming = direct ? target : lane.receive_scratch.data();
    if (lane.receive(incoming, count * wire_item) != Transfer::Done) {
      Lock lock(mutex_);
      lost_receiving(link, lane, lock);
      return false;
    }
    if (!verify(link, header, incoming)) return false;
    if (direct) continue;
    const auto wire_dtype = static_cast<DType>(request.wire);
    if (run.operand == nullptr) {
      kernels().widen(wire_dtype, target, incoming, count);
      continue;
    }
    if (wire) {
      kernels().reduce_wire(wire_dtype, request.op, target, run.operand + skip, incoming, count);
    } else {
      kernels().reduce(request.dtype, request.op, target, run.operand + skip, incoming, count);
    }
    if (!run.last) continue;
    if (request.op == ReduceOp::Average) kernels().divide(request.dtype, target, count, operation.group->size());
    // The others get this result rounded to the wire's type, so it is rounded here too: same bits everywhere.
    if (wire && request.kind == Kind::AllReduce) {
      kernels().narrow(wire_dtype, incoming, target, count);
      kernels().widen(wire_dtype, target, incoming, count);
    }
  }
  return true;
}

bool Engine::take_data(Link& link, Lane& lane, const FrameHeader& header) {
  Lock lock(mutex_);
  if (failed_ || stopping_) return false;
  const auto operation = find(header);
  Stream* stream = nullptr;
  if (operation) {
    for (auto& candidate : operation->streams) {
      if (candidate->index == header.stream && candidate->from == header.source) stream = candidate.get();
    }
  }
  const uint64_t count = operation ? header.payload_bytes / wire_itemsize(operation->request) : 0;
  const uint64_t end = header.offset + count;
  const bool expected =
      stream && count > 0 && end <= stream->credited &&
      end <= stream->receive_run_at(header.offset).start + stream->receive_run_at(header.offset).count;
  if (!expected) {
    fail(Failure::PeerLost,
         who(rank_) + " received data from " + who(header.source) + " that no call here expects" + where(), lock);
    return false;
  }
  const ReceiveRun& run = stream->receive_run_at(header.offset);
  if (operation->first_ns == 0) operation->first_ns = now_ns();
  ++operation->pins;
  operation->progressed.wait(lock, [&] { return failed_ || stopping_ || stream->may_store(header.offset, count); });
  lock.unlock();
  const bool stored = store(link, lane, *operation, run, header);
  lock.lock();
  --operation->pins;
  if (!stored) {
    complete_if_ready(operation, lock);
    return false;
  }
  stream->received.add(header.offset, end);
  data_ns_ = operation->progress_ns = now_ns();
  if (stream->finished()) --operation->unfinished_streams;
  if (!failed_) give_credit(*operation, *stream);
  if (stream->to >= 0) wake_senders(link_towards(stream->to));
  complete_if_ready(operation, lock);
  return true;
}

}  // namespace mlrun::ring
