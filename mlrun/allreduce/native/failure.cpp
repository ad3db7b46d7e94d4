// How a communicator fails: one first cause, told to every rank and every waiter. And the three timers: the silence of
// a link, a rank that doesn't enter a call, and a call that all have entered and that moves no byte.
#include <cstdio>
#include <cstring>

#include "engine.h"

namespace mlrun::ring {

namespace {

// How long a blocked frame may hold up the frame that tells the cause, and the caller's memory.
constexpr int64_t kGraceNs = 30000000;

int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", value);
  return text;
}

}  // namespace

void Engine::abort(const std::string& reason) {
  Lock lock(mutex_);
  if (!failed_ && !closing_) fail(Failure::Aborted, who(rank_) + " aborted: " + reason, lock);
  if (failed_) changed_.wait(lock, [&] { return told_; });
}

void Engine::fail(Failure failure, const std::string& text, Lock& lock) {
  if (failed_ || stopping_) return;
  failed_.emplace(failure, text);
  give_up_ns_ = now_ns() + kGraceNs;
  sending_.clear();
  unannounced_.clear();
  early_.clear();
  Frame frame{{}, allocate_payload(text.size())};
  frame.header.type = FrameType::Abort;
  frame.header.generation = config_.generation;
  frame.header.source = rank_;
  frame.header.tag = static_cast<int32_t>(failure);
  frame.header.payload_bytes = static_cast<uint32_t>(text.size());
  std::memcpy(frame.payload.get(), text.data(), text.size());
  // Each rank that hears of it tells its own neighbours.
  frame.header.hops = 1;
  for (auto& link : links_) {
    link->control.clear();
    link->forwarded.clear();
    push_control(*link, frame);
    wake_senders(*link);
    for (auto& lane : link->lanes) {
      lane->stop_receiving();
      lane->wake_receiver.notify_all();
    }
  }
  for (const auto& entry : operations_) {
    entry.second->error = failed_;
    entry.second->progressed.notify_all();
  }
  watch_.notify_all();
  free_waiters_once_told(lock);
}

// A waiter may end its process: what the neighbours should hear goes out first, within the grace.
void Engine::free_waiters_once_told(Lock& lock) {
  if (!failed_ || told_) return;
  const bool in_time = now_ns() < give_up_ns_;
  for (const auto& link : links_) {
    if (in_time && !link->closed && (!link->control.empty() || link->first().sending)) return;
  }
  told_ = true;
  const auto under_way = operations_;
  for (const auto& entry : under_way) complete_if_ready(entry.second, lock);
  changed_.notify_all();
}

// The link has ended or given up.
void Engine::lost(Link& link, const Lane& lane, Lock& lock) {
  if (failed_ || stopping_ || link.closed) return;
  if (departed_[static_cast<size_t>(link.peer)]) {
    link.closed = true;
    link.control.clear();
    changed_.notify_all();
    check_departed(lock);
    return;
  }
  if (closing_) {
    link.closed = true;
    changed_.notify_all();
  }
  const std::string why =
      lane.last_errno == 0 ? "the peer's process ended or closed it" : std::strerror(lane.last_errno);
  fail(Failure::PeerLost, who(rank_) + " lost its link to " + who(link.peer) + ": " + why + where(), lock);
}

// A call can't end when a rank that it still waits for has said goodbye.
void Engine::check_departed(Lock& lock) {
  for (const auto& entry : operations_) {
    const Operation& operation = *entry.second;
    for (size_t index = 0; index < operation.entries.size(); ++index) {
      const int rank = operation.group->ranks[index];
      const bool awaited =
          is_point_to_point(operation.request.kind) ? operation.request.root == static_cast<int>(index) : rank != rank_;
      if (!awaited || operation.has_entered(index) || !departed_[static_cast<size_t>(rank)]) continue;
      fail(Failure::PeerLost, who(rank) + " closed its communicator without entering " + operation.describe(), lock);
      return;
    }
  }
}

// ", in all_reduce #3 ..., after step 2 of 6": the oldest call under way.
std::string Engine::where() const {
  for (const auto& [key, operation] : operations_) {
    if (operation->absent == 0) return "; in " + operation->describe() + step_of(*operation);
  }
  if (!operations_.empty()) return "; in " + operations_.begin()->second->describe() + ", not yet entered by all";
  return "; no call was under way";
}

std::string Engine::step_of(const Operation& operation) const {
  uint64_t done = 0;
  uint64_t all = 0;
  for (const auto& stream : operation.streams) {
    done += stream->steps_received();
    all += stream->receive_runs.size();
  }
  if (all == 0) return "";
  return ", after step " + std::to_string(done) + " of " + std::to_string(all);
}

void Engine::watch() {
  const double shortest = std::min({config_.heartbeat_s, config_.entry_timeout_s, config_.progress_timeout_s});
  const auto tick = std::chrono::nanoseconds(to_ns(std::min(1.0, std::max(0.005, shortest / 5))));
  Lock lock(mutex_);
  int64_t before = now_ns();
  while (!stopping_) {
    watch_.wait_for(lock, tick);
    if (failed_) {
      const auto grace = std::chrono::nanoseconds(std::max<int64_t>(0, give_up_ns_ - now_ns()));
      watch_.wait_for(lock, grace, [&] { return told_ || stopping_; });
      free_waiters_once_told(lock);
      return;
    }
    if (stopping_) return;
    const int64_t now = now_ns();
    // Whoever was stopped itself has heard nothing meanwhile, which says nothing of the peers.
    if (now - before > to_ns(config_.heartbeat_s / 2)) {
      for (auto& link : links_) {
        for (auto& lane : link->lanes) lane->heard_ns = now;
      }
    }
    before = now;
    watch_links(now, lock);
    if (!failed_) watch_operations(now, lock);
  }
}

void Engine::watch_links(int64_t now, Lock& lock) {
  for (auto& link : links_) {
    if (link->closed || failed_) continue;
    if (now - link->last_control_ns > to_ns(config_.heartbeat_s / 4)) {
      FrameHeader header;
      header.generation = config_.generation;
      header.source = rank_;
      header.destination = link->peer;
      if (link->control.empty()) push_control(*link, {header, nullptr});
    }
    int64_t heard = 0;
    for (auto& lane : link->lanes) heard = std::max<int64_t>(heard, lane->heard_ns);
    if (now - heard > to_ns(config_.heartbeat_s) && !departed_[static_cast<size_t>(link->peer)]) {
      fail(Failure::PeerLost,
           who(rank_) + " has heard nothing from " + who(link->peer) + " for " + seconds(config_.heartbeat_s) +
               ": it is stopped, off, or unreachable" + where(),
           lock);
    }
  }
}

void Engine::watch_operations(int64_t now, Lock& lock) {
  std::map<uint32_t, bool> head_seen;
  for (const auto& [key, operation] : operations_) {
    const bool direct = is_point_to_point(operation->request.kind);
    // In a group, later calls wait for the earlier ones.
    if (!direct && std::exchange(head_seen[operation->group->id], true)) continue;
    if (operation->head_ns == 0) operation->head_ns = now;
    if (operation->absent > 0) {
      std::string absent;
      for (size_t index = 0; index < operation->entries.size(); ++index) {
        const bool awaited = direct ? static_cast<int>(index) == operation->request.root : true;
        const int rank = operation->group->ranks[index];
        if (!awaited || operation->entries[index] || rank == rank_) continue;
        absent += (absent.empty() ? "" : ", ") + who(rank);
      }
      const double waited = static_cast<double>(now - operation->head_ns) * 1e-9;
      if (waited > config_.entry_timeout_s) {
        fail(Failure::Deadline,
             who(rank_) + " waited " + seconds(config_.entry_timeout_s) + " in " + operation->describe() + " for " +
                 absent + " to enter it",
             lock);
        return;
      }
      if (waited > std::min(60.0, config_.entry_timeout_s / 2) && !std::exchange(operation->warned, true)) {
        std::fprintf(stderr, "mlrun: %s has waited %s in %s for %s to enter it\n", who(rank_).c_str(),
                     seconds(waited).c_str(), operation->describe().c_str(), absent.c_str());
      }
      continue;
    }
    const int64_t since = std::max({operation->progress_ns, operation->head_ns, direct ? data_ns_ : 0});
    if (now - since <= to_ns(config_.progress_timeout_s)) continue;
    std::string awaited;
    for (const auto& stream : operation->streams) {
      if (stream->received.prefix() < stream->receive_total) awaited = " from " + who(stream->from);
      if (awaited.empty() && stream->sent.prefix() < stream->send_total) awaited = " to " + who(stream->to);
    }
    fail(Failure::PeerLost,
         who(rank_) + " moved no byte" + awaited + " for " + seconds(config_.progress_timeout_s) + " in " +
             operation->describe() + step_of(*operation),
         lock);
    return;
  }
}

}  // namespace mlrun::ring
