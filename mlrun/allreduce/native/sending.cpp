// What goes out: control frames first, then other ranks' data in turn with the own streams, oldest call first.
#include <array>

#include "crc32c.h"
#include "engine.h"
#include "kernels.h"
#include "schedule.h"

namespace mlrun::ring {

namespace {

constexpr uint64_t kSegmentBytes = 512 << 10;
constexpr uint64_t kSmallestSegmentBytes = 32 << 10;
constexpr uint64_t kPacedSegmentBytes = 64 << 10;
// Flows that others must pass on, to one rank at a time: bounds what a rank between keeps.
constexpr int kWindowedFlows = 4;

// Small payloads in small segments: the next step begins once the first segment is in.
uint64_t segment_bytes(uint64_t total, bool paced) {
  return std::min(paced ? kPacedSegmentBytes : kSegmentBytes, std::max(kSmallestSegmentBytes, total / 8));
}

}  // namespace

thread_local bool DirectSending::on = false;
thread_local bool DirectSending::owed = false;

Link& Engine::link_towards(int rank) {
  const int distance = (rank - rank_ + size_) % size_;
  return *links_[distance <= size_ / 2 || links_.size() == 1 ? 0 : 1];
}

void Engine::wake_senders(Link& link) {
  for (auto& lane : link.lanes) {
    if (DirectSending::on && lane == link.lanes.front()) {
      DirectSending::owed = true;
    } else {
      lane->wake_sender.notify_one();
    }
  }
}

void Engine::push_control(Link& link, Frame frame) {
  if (link.closed) return;
  link.control.push_back(std::move(frame));
  if (!DirectSending::on) link.first().wake_sender.notify_one();
}

// Both ways round, so that every other rank gets it once and soon.
void Engine::push_everywhere(Frame frame) {
  frame.header.destination = kEveryone;
  frame.header.hops = static_cast<uint16_t>(size_ / 2);
  push_control(*links_[0], frame);
  frame.header.hops = static_cast<uint16_t>((size_ - 1) / 2);
  if (links_.size() > 1) push_control(*links_[1], frame);
}

void Engine::push_to(int destination, Frame frame) {
  frame.header.destination = destination;
  push_control(link_towards(destination), std::move(frame));
}

// Tells the sender of a bounded stream how far it may go, a quarter of the window at a time.
void Engine::give_credit(Operation& operation, Stream& stream) {
  if (stream.window_in == 0 && stream.scratch_slots == 0) return;
  const uint64_t limit = stream.receive_limit();
  const uint64_t worth_a_frame = stream.window_in > 0 ? stream.window_in / 4 : 1;
  if (limit < stream.credited + worth_a_frame && (limit < stream.receive_total || limit == stream.credited)) return;
  stream.credited = limit;
  FrameHeader header = operation.header;
  header.type = FrameType::Credit;
  header.stream = stream.index;
  header.offset = limit;
  push_to(stream.from, {header, nullptr});
}

Transfer Engine::write(Lane& lane, FrameHeader& header, const void* payload, bool now) {
  if (config_.pace_delay_s > 0) header.sent_ns = now_ns();
  header.checked = config_.checksum ? 1 : 0;
  header.checksum = 0;
  if (config_.checksum) header.checksum = crc32c(crc32c(0, &header, sizeof header), payload, header.payload_bytes);
  if (lane.pacer.on()) lane.pacer.carry(sizeof header + header.payload_bytes);
  iovec parts[2] = {{&header, sizeof header}, {const_cast<void*>(payload), header.payload_bytes}};
  const int count = header.payload_bytes > 0 ? 2 : 1;
  return now ? lane.send_now(parts, count) : lane.send(parts, count);
}

// Writes one frame of another's making, without the mutex; false once the socket is broken.
bool Engine::send_frame(Link& link, Lane& lane, Frame frame, Lock& lock, bool now) {
  lane.last_sent_ns = now_ns();
  lane.sending = true;
  lock.unlock();
  const Transfer transfer = write(lane, frame.header, frame.payload.get(), now);
  lock.lock();
  lane.sending = false;
  if (closing_) changed_.notify_all();
  free_waiters_once_told(lock);
  if (transfer != Transfer::Done) lost_sending(link, lane, lock);
  return transfer == Transfer::Done;
}

// The caller's thread writes its own announcements: that saves waking another one. It never waits for the socket.
void Engine::send_control_now(Lock& lock) {
  for (auto& link : links_) {
    Lane& lane = link->first();
    while (!link->control.empty() && !lane.sending && !failed_ && !lane.has_backlog()) {
      Frame frame = std::move(link->control.front());
      link->control.pop_front();
      send_frame(*link, lane, std::move(frame), lock, true);
    }
    const bool left = !link->control.empty() || !link->forwarded.empty() || lane.has_backlog() || DirectSending::owed;
    if (left) lane.wake_sender.notify_one();
  }
}

bool Engine::flush_backlog(Link& link, Lane& lane, Lock& lock) {
  if (!lane.has_backlog()) return false;
  lane.sending = true;
  lock.unlock();
  const Transfer transfer = lane.send(nullptr, 0);
  lock.lock();
  lane.sending = false;
  if (closing_) changed_.notify_all();
  free_waiters_once_told(lock);
  if (transfer != Transfer::Done) lost_sending(link, lane, lock);
  return transfer == Transfer::Done;
}

void Engine::send_loop(Link& link, Lane& lane) {
  Lock lock(mutex_);
  while (!stopping_) {
    if (!lane.sending && send_one(link, lane, lock)) continue;
    if (stopping_) return;
    lane.wake_sender.wait(lock);
  }
}

// Sends the most urgent frame; false if there is none.
bool Engine::send_one(Link& link, Lane& lane, Lock& lock) {
  if (flush_backlog(link, lane, lock)) return true;
  if (&lane == &link.first() && send_control(link, lane, lock)) return true;
  if (failed_ || link.ended_ns != 0) return false;
  if (send_heartbeat(link, lane, lock)) return true;
  lane.prefers_forwarded = !lane.prefers_forwarded;
  if (lane.prefers_forwarded) return send_forwarded(link, lane, lock) || send_stream(link, lane, lock);
  return send_stream(link, lane, lock) || send_forwarded(link, lane, lock);
}

bool Engine::send_control(Link& link, Lane& lane, Lock& lock) {
  if (link.control.empty()) return false;
  Frame frame = std::move(link.control.front());
  link.control.pop_front();
  return send_frame(link, lane, std::move(frame), lock);
}

bool Engine::send_heartbeat(Link& link, Lane& lane, Lock& lock) {
  if (!std::exchange(lane.owes_heartbeat, false)) return false;
  FrameHeader header;
  header.generation = config_.generation;
  header.source = rank_;
  header.destination = link.peer;
  return send_frame(link, lane, {header, nullptr}, lock);
}

bool Engine::send_forwarded(Link& link, Lane& lane, Lock& lock) {
  if (link.forwarded.empty()) return false;
  Frame frame = std::move(link.forwarded.front());
  link.forwarded.pop_front();
  return send_frame(link, lane, std::move(frame), lock);
}

bool Engine::send_stream(Link& link, Lane& lane, Lock& lock, bool now) {
  std::shared_ptr<Operation> operation;
  Stream* stream = nullptr;
  uint64_t count = 0;
  std::vector<int> windowed(static_cast<size_t>(size_), 0);
  for (auto candidate = sending_.begin(); candidate != sending_.end(); ++candidate) {
    Stream& found = *candidate->second;
    if (&link_towards(found.to) != &link) continue;
    if (found.window_out > 0 && windowed[static_cast<size_t>(found.to)]++ >= kWindowedFlows) continue;
    if (!candidate->first->has_entered(static_cast<size_t>(candidate->first->group->index_of(found.to)))) continue;
    const uint64_t item = wire_itemsize(candidate->first->request);
    const uint64_t segment = segment_bytes(found.send_total * item, lane.pacer.on()) / item;
    count = found.sendable();
    // More sockets only help where each gets whole segments.
    if (count == 0 || (&lane != &link.first() && count < 2 * segment)) continue;
    count = std::min(count, segment);
    operation = candidate->first;
    stream = &found;
    if (found.claimed + count == found.send_total) sending_.erase(candidate);
    break;
  }
  if (!operation) return false;

  const Request& request = operation->request;
  const SendRun& run = stream->send_run_at(stream->claimed);
  const uint64_t position = stream->claimed;
  stream->claimed += count;
  ++operation->pins;
  lane.sending = true;
  FrameHeader header = operation->header;
  header.type = FrameType::Data;
  header.stream = stream->index;
  header.destination = stream->to;
  header.offset = position;
  header.payload_bytes = static_cast<uint32_t>(count * wire_itemsize(request));
  header.name_bytes = 0;
  const uint64_t item = is_reduction(request.kind) ? itemsize(request.dtype) : 1;
  const char* payload = run.data + (position - run.start) * item;
  if (operation->first_ns == 0) operation->first_ns = now_ns();
  // Another socket may go on with the same stream.
  if (link.lanes.size() > 1) wake_senders(link);
  lock.unlock();
  if (is_reduction(request.kind) && request.wire != kNoWire) {
    lane.send_scratch.resize(kSegmentBytes);
    kernels().narrow(static_cast<DType>(request.wire), lane.send_scratch.data(), payload, count);
    payload = lane.send_scratch.data();
  }
  const Transfer transfer = write(lane, header, payload, now);
  lock.lock();
  lane.sending = false;
  if (closing_) changed_.notify_all();
  free_waiters_once_told(lock);
  --operation->pins;
  if (transfer != Transfer::Done) {
    lost_sending(link, lane, lock);
    complete_if_ready(operation, lock);
    return false;
  }
  stream->sent.add(position, position + count);
  operation->progressed.notify_all();
  data_ns_ = operation->progress_ns = lane.last_sent_ns = now_ns();
  if (stream->finished()) --operation->unfinished_streams;
  if (stream->scratch_slots > 0 && !failed_) give_credit(*operation, *stream);
  complete_if_ready(operation, lock);
  return true;
}

}  // namespace mlrun::ring
