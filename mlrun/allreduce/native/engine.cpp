#include "engine.h"

#include <algorithm>

#include "kernels.h"
#include "pairwise.h"
#include "schedule.h"

namespace mlrun::ring {

namespace {

constexpr size_t kSmallUnderWay = 32;
// How long a rank that has closed goes on passing frames on for those that haven't.
constexpr auto kLingerLimit = std::chrono::seconds(5);

std::shared_ptr<Group> whole_world(const Config& config) {
  auto group = std::make_shared<Group>();
  for (int rank = 0; rank < config.size(); ++rank) group->ranks.push_back(rank);
  group->me = config.rank;
  return group;
}

bool is_crowded(const Config& config) {
  const auto& hosts = config.hosts;
  const auto ranks_here = std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(config.rank)]);
  return ranks_here > static_cast<int64_t>(std::thread::hardware_concurrency());
}

// Such data goes out when the caller waits, or else once the peer's comes in: the first rank to make the call puts
// nothing off. That saves waking a thread for what the caller is about to send itself.
bool may_put_off(const Operation& operation) {
  const Request& request = operation.request;
  const bool all_send = request.count >= 2 * operation.entries.size();
  return request.kind == Kind::AllReduce && is_for_callers(request) && all_send;
}

}  // namespace

Engine::Engine(Config config)
    : config_(std::move(config)),
      rank_(config_.rank),
      size_(config_.size()),
      callers_progress_(config_.pace_bytes_s <= 0 && config_.pace_delay_s <= 0),
      crowded_(is_crowded(config_)),
      world_(whole_world(config_)),
      give_up_ns_(INT64_MAX),
      departed_(static_cast<size_t>(size_), false),
      data_ns_(now_ns()) {
  const auto add_link = [&](int peer, const std::vector<int>& sockets) {
    auto link = std::make_unique<Link>();
    link->peer = peer;
    for (const int fd : sockets) {
      link->lanes.push_back(std::make_unique<Lane>(fd, config_.pace_bytes_s, give_up_ns_));
    }
    links_.push_back(std::move(link));
  };
  if (size_ > 1) add_link((rank_ + 1) % size_, config_.next);
  if (size_ > 2) add_link((rank_ + size_ - 1) % size_, config_.previous);
  for (auto& link : links_) {
    for (auto& lane : link->lanes) {
      lane->sender = std::thread([this, &link = *link, &lane = *lane] { send_loop(link, lane); });
      lane->receiver = std::thread([this, &link = *link, &lane = *lane] { receive_loop(link, lane); });
    }
  }
  if (size_ > 1) watcher_ = std::thread([this] { watch(); });
}

Engine::~Engine() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    give_up_ns_ = 0;
    for (auto& link : links_) {
      for (auto& lane : link->lanes) {
        lane->stop_receiving();
        lane->wake_sender.notify_all();
        lane->wake_receiver.notify_all();
      }
    }
    for (const auto& entry : operations_) entry.second->progressed.notify_all();
    watch_.notify_all();
    changed_.notify_all();
  }
  for (auto& link : links_) {
    for (auto& lane : link->lanes) {
      lane->sender.join();
      lane->receiver.join();
    }
  }
  if (watcher_.joinable()) watcher_.join();
}

std::string Engine::who(int rank) const {
  return "rank " + std::to_string(rank) + " (" + config_.hosts[static_cast<size_t>(rank)] + ")";
}

Engine::CallKey Engine::key_of(const Operation& operation) const {
  const Request& request = operation.request;
  if (!is_point_to_point(request.kind)) return {operation.group->id, -1, operation.sequence, 0, 0};
  const int peer = operation.group->ranks[static_cast<size_t>(request.root)];
  return {operation.group->id, static_cast<int>(request.kind), operation.sequence, peer, request.tag};
}

std::shared_ptr<Operation> Engine::issue(const std::shared_ptr<Group>& group, Request request) {
  auto operation = std::make_shared<Operation>();
  operation->request = std::move(request);
  operation->group = group;
  operation->entries.resize(group->ranks.size());
  operation->issued_ns = now_ns();
  Lock lock(mutex_);
  if (failed_) throw *failed_;
  if (closing_) throw RingError(Failure::Aborted, who(rank_) + " has closed this communicator");
  prepare(*operation);
  operations_.emplace(key_of(*operation), operation);
  for (auto& stream : operation->streams) {
    if (stream->send_total > 0) sending_.emplace_back(operation, stream.get());
  }
  if (!is_for_callers(operation->request)) {
    for (auto& link : links_) {
      link->first().claimed_until_ns = 0;
      link->first().wake_receiver.notify_all();
    }
  }
  const DirectSending direct(callers_progress_);
  unannounced_.push_back(operation);
  announce_waiting();
  for (const int peer : group->ranks) {
    const auto waiting = early_.find({key_of(*operation), peer});
    if (waiting == early_.end()) continue;
    Frame frame = std::move(waiting->second);
    early_.erase(waiting);
    enter(operation, std::move(frame), lock);
  }
  complete_if_ready(operation, lock);
  check_departed(lock);
  if (may_put_off(*operation)) DirectSending::owed = false;
  if (callers_progress_) send_control_now(lock);
  return operation;
}

// Numbers the call and lays out its flows.
void Engine::prepare(Operation& operation) {
  const Request& request = operation.request;
  Group& group = *operation.group;
  const bool direct = is_point_to_point(request.kind);
  const std::pair<int, int> match{request.root, request.tag};
  operation.sequence = request.kind == Kind::Send      ? group.sends[match]++
                       : request.kind == Kind::Receive ? group.receives[match]++
                                                       : group.next_sequence++;
  operation.pairwise = goes_pairwise(request, group, size_);
  operation.present.resize(group.ranks.size());
  operation.absent = direct ? 1 : operation.pairwise ? 2 : group.ranks.size() - 1;
  operation.small = !direct && group.size() > 1 && travels_with_announcement(request, group.size());
  FrameHeader& header = operation.header;
  header.type = FrameType::Announce;
  header.kind = request.kind;
  header.generation = config_.generation;
  header.group = group.id;
  header.sequence = operation.sequence;
  header.source = rank_;
  header.count = request.count;
  header.dtype = request.dtype;
  header.wire = request.wire;
  header.op = request.op;
  header.root = request.root;
  header.tag = request.tag;
  if (!operation.small) make_streams(operation, size_);
  const uint64_t bytes = request.count * itemsize(request.dtype);
  const auto me = static_cast<size_t>(group.me);
  if (request.kind == Kind::AllGather && !operation.small && request.source != request.target + me * bytes) {
    copy(request.target + me * bytes, request.source, bytes);
  }
  if (request.kind == Kind::ReduceScatter && group.size() == 1) copy(request.target, request.source, bytes);
  if (request.kind == Kind::AllToAll) {
    uint64_t from = 0;
    uint64_t to = 0;
    for (size_t i = 0; i < me; ++i) {
      from += request.source_counts[i];
      to += request.target_counts[i];
    }
    const uint64_t size = itemsize(request.dtype);
    copy(request.target + to * size, request.source + from * size, request.source_counts[me] * size);
  }
}

// A payload that travels with its announcement waits while too many do, so that what a late rank keeps is bounded.
void Engine::announce_waiting() {
  for (auto next = unannounced_.begin(); next != unannounced_.end();) {
    Operation& operation = **next;
    if (operation.small && operation.group->small_under_way >= kSmallUnderWay) {
      ++next;
      continue;
    }
    if (operation.small) ++operation.group->small_under_way;
    announce(operation);
    next = unannounced_.erase(next);
  }
}

void Engine::announce(Operation& operation) {
  Frame frame = announcement_of(operation);
  operation.announced = true;
  operation.entries[static_cast<size_t>(operation.group->me)] = frame;
  if (size_ == 1) return;
  if (is_point_to_point(operation.request.kind)) {
    push_to(operation.group->ranks[static_cast<size_t>(operation.request.root)], frame);
  } else if (operation.pairwise) {
    push_to(first_partner(rank_), frame);
    push_partial(operation);
  } else if (operation.group->id == 0) {
    push_everywhere(frame);
  } else {
    for (const int peer : operation.group->ranks) {
      if (peer != rank_) push_to(peer, frame);
    }
  }
}

// To the second partner, once the first one's data is in.
void Engine::push_partial(Operation& operation) {
  if (!operation.announced || operation.partial) return;
  if (!operation.has_entered(static_cast<size_t>(first_partner(rank_)))) return;
  operation.partial = partial_result(operation);
  push_to(second_partner(rank_), *operation.partial);
}

Frame Engine::announcement_of(Operation& operation) {
  const Request& request = operation.request;
  const uint64_t items = request.count * (request.kind == Kind::ReduceScatter ? operation.entries.size() : 1);
  const bool narrowed = operation.small && is_reduction(request.kind) && request.wire != kNoWire;
  const char* body = request.source;
  uint64_t bytes = 0;
  if (request.kind == Kind::AllToAll) {
    body = reinterpret_cast<const char*>(request.target_counts.data());
    bytes = request.target_counts.size() * sizeof(uint64_t);
  } else if (operation.small && (request.kind != Kind::Broadcast || operation.group->me == request.root)) {
    bytes = is_reduction(request.kind) ? items * wire_itemsize(request) : items * itemsize(request.dtype);
  }
  Frame frame{operation.header, nullptr};
  frame.header.name_bytes = static_cast<uint16_t>(std::min<size_t>(request.name.size(), 256));
  frame.header.payload_bytes = static_cast<uint32_t>(frame.header.name_bytes + bytes);
  frame.payload = allocate_payload(frame.header.payload_bytes);
  copy(frame.payload.get(), request.name.data(), frame.header.name_bytes);
  char* to = frame.payload.get() + frame.header.name_bytes;
  if (narrowed) {
    kernels().narrow(static_cast<DType>(request.wire), to, body, items);
  } else if (bytes > 0) {
    copy(to, body, bytes);
  }
  return frame;
}

void Engine::complete_if_ready(const std::shared_ptr<Operation>& operation, Lock& lock) {
  if (operation->done || operation->completing || operation->pins > 0) return;
  if (operation->error) {
    if (!told_) return;
  } else {
    if (operation->absent > 0 || operation->unfinished_streams > 0 || !operation->announced) return;
    if (operation->small) {
      operation->completing = true;
      lock.unlock();
      operation->pairwise ? finish_pairwise(*operation) : finish_small(*operation);
      lock.lock();
    }
  }
  end(operation);
}

void Engine::end(const std::shared_ptr<Operation>& operation) {
  operation->done = true;
  operation->last_ns = now_ns();
  if (operation->first_ns == 0) operation->first_ns = operation->issued_ns;
  operations_.erase(key_of(*operation));
  if (operation->small && operation->announced) --operation->group->small_under_way;
  if (!failed_) announce_waiting();
  for (auto& entry : operation->entries) {
    if (entry) entry->payload.reset();
  }
  operation->partial.reset();
  operation->scratch = {};
  operation->ended.notify_all();
  if (closing_) changed_.notify_all();
}

bool Engine::wait(Operation& operation, double timeout_s) {
  Lock lock(mutex_);
  const auto ended = [&] { return operation.done; };
  if (!operation.done && timeout_s != 0) make_progress(operation, lock);
  if (timeout_s < 0) {
    operation.ended.wait(lock, ended);
  } else if (!operation.ended.wait_for(lock, std::chrono::duration<double>(timeout_s), ended)) {
    return false;
  }
  if (operation.error) throw *operation.error;
  return true;
}

bool Engine::done(Operation& operation) {
  Lock lock(mutex_);
  return operation.done;
}

std::optional<std::pair<double, double>> Engine::times(Operation& operation) {
  Lock lock(mutex_);
  if (!operation.done || operation.group->size() == 1) return std::nullopt;
  return std::pair{static_cast<double>(operation.first_ns) * 1e-9, static_cast<double>(operation.last_ns) * 1e-9};
}

uint32_t Engine::next_group_id(Group& parent) {
  Lock lock(mutex_);
  // A mix of the parent's number and how often it was split: all ranks of the parent find the same.
  uint64_t mixed = (static_cast<uint64_t>(parent.id) << 32 | ++parent.splits) * 0x9e3779b97f4a7c15u;
  mixed ^= mixed >> 29;
  mixed *= 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(mixed >> 32) | 1;
}

std::shared_ptr<Group> Engine::make_group(const Group& parent, const std::vector<int>& ranks, uint32_t id) {
  auto group = std::make_shared<Group>();
  group->id = id;
  for (const int rank : ranks) group->ranks.push_back(parent.ranks[static_cast<size_t>(rank)]);
  group->me = group->index_of(rank_);
  return group;
}

void Engine::close() {
  Lock lock(mutex_);
  if (closing_) return;
  closing_ = true;
  const auto under_way = [&] {
    for (const auto& [key, operation] : operations_) {
      if (operation->absent == 0) return true;
    }
    return false;
  };
  // Calls that all have entered end by themselves, or fail by the engine's timers.
  changed_.wait(lock, [&] { return failed_ || !under_way(); });
  if (!failed_ && !operations_.empty()) {
    fail(Failure::Aborted,
         who(rank_) + " closed its communicator while waiting in " + operations_.begin()->second->describe(), lock);
  }
  FrameHeader goodbye;
  goodbye.type = FrameType::Goodbye;
  goodbye.generation = config_.generation;
  goodbye.source = rank_;
  if (failed_ || size_ == 1) return;
  departed_[static_cast<size_t>(rank_)] = true;
  push_everywhere({goodbye, nullptr});
  changed_.wait_for(lock, kLingerLimit, [&] { return failed_ || may_leave(); });
}

// Once every rank has said goodbye, and all of it has been passed on.
bool Engine::may_leave() const {
  bool all_closed = true;
  for (const auto& link : links_) {
    all_closed = all_closed && link->closed;
    if (link->ended_ns != 0) continue;
    if (!link->control.empty() || !link->forwarded.empty()) return false;
    for (const auto& lane : link->lanes) {
      if (lane->sending || lane->has_backlog()) return false;
    }
  }
  return all_closed || std::all_of(departed_.begin(), departed_.end(), [](bool gone) { return gone; });
}

std::vector<LinkCounters> Engine::counters() {
  std::vector<LinkCounters> result;
  for (const auto& link : links_) {
    LinkCounters sum{link->peer, 0, 0, 0, 0, 0};
    for (const auto& lane : link->lanes) {
      sum.bytes_sent += lane->bytes_sent;
      sum.bytes_received += lane->bytes_received;
      sum.send_blocked_s += static_cast<double>(lane->send_blocked_ns) * 1e-9;
      sum.receive_blocked_s += static_cast<double>(lane->receive_blocked_ns) * 1e-9;
      const int64_t retransmits = lane->retransmits();
      sum.retransmits = retransmits < 0 || sum.retransmits < 0 ? -1 : sum.retransmits + retransmits;
    }
    result.push_back(sum);
  }
  return result;
}

}  // namespace mlrun::ring
