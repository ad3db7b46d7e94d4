// How a communicator fails: one first cause, told to every rank and every waiter. And the three timers: the silence of
// a link, a rank that doesn't enter a call, and a call that all have entered and that moves no byte.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine.h"

namespace mlrun::ring {

namespace {

// How long a blocked frame may hold up the frame that tells the cause, and the caller's memory.
constexpr int64_t kGraceNs = 40000000;
// A link that ended without a word: the peer may have gone because of another rank, of which the other neighbour tells.
constexpr int64_t kOtherSideNs = 200000000;
// How long what still lies in the first socket may take to be read once the link is known to be broken.
constexpr int64_t kHearOutNs = 1000000000;
constexpr auto kJudgeEvery = std::chrono::milliseconds(10);

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
    tell(*link, frame);
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

// Puts the cause on the wire at once; behind a frame that is under way, the sending thread does.
void Engine::tell(Link& link, Frame frame) {
  if (link.closed) return;
  Lane& lane = link.first();
  if (lane.sending || lane.has_backlog()) {
    link.control.push_back(std::move(frame));
  } else {
    write(lane, frame.header, frame.payload.get(), true);
  }
  for (auto& each : link.lanes) each->wake_sender.notify_one();
}

// A waiter may end its process: what the neighbours should hear goes out first, within the grace.
void Engine::free_waiters_once_told(Lock& lock) {
  if (!failed_ || told_) return;
  const bool in_time = now_ns() < give_up_ns_;
  for (const auto& link : links_) {
    const bool untold = !link->control.empty() || link->first().sending || link->first().has_backlog();
    if (in_time && !link->closed && untold) return;
  }
  told_ = true;
  const auto under_way = operations_;
  for (const auto& entry : under_way) complete_if_ready(entry.second, lock);
  changed_.notify_all();
}

void Engine::lost_sending(Link& link, const Lane& lane, Lock& lock) {
  if (failed_ || stopping_ || link.closed) return;
  if (link.ended_ns == 0) {
    link.ended_ns = now_ns();
    link.ended_why = lane.last_errno == 0 ? "the peer's process ended or closed it" : std::strerror(lane.last_errno);
  }
  judge(link, lock);
  watch_.notify_all();
}

void Engine::lost_receiving(Link& link, const Lane& lane, Lock& lock) {
  if (&lane == &link.first()) link.heard_out = true;
  lost_sending(link, lane, lock);
}

// Why a link ended is told by what came before the end: a goodbye, or the cause, on the first socket. Another socket
// or the sending side may notice the end sooner.
void Engine::judge(Link& link, Lock& lock) {
  if (failed_ || stopping_ || link.closed || link.ended_ns == 0) return;
  if (departed_[static_cast<size_t>(link.peer)]) {
    if (!link.heard_out) return;
    link.closed = true;
    link.control.clear();
    link.forwarded.clear();
    changed_.notify_all();
    return;
  }
  const int64_t patience = !link.heard_out ? kHearOutNs : links_.size() > 1 ? kOtherSideNs : 0;
  if (now_ns() - link.ended_ns < patience) return;
  fail(Failure::PeerLost, who(rank_) + " lost its link to " + who(link.peer) + ": " + link.ended_why + where(), lock);
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
    const bool judging = std::any_of(links_.begin(), links_.end(),
                                     [](const auto& link) { return link->ended_ns != 0 && !link->closed; });
    watch_.wait_for(lock, judging ? std::chrono::nanoseconds(kJudgeEvery) : tick);
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
    for (auto& link : links_) watch_link(*link, now, lock);
    if (!failed_) watch_operations(now, lock);
  }
}

// Each socket may go over a cable of its own, so each has a heartbeat.
void Engine::watch_link(Link& link, int64_t now, Lock& lock) {
  judge(link, lock);
  if (failed_ || link.ended_ns != 0) return;
  for (size_t index = 0; index < link.lanes.size() && !failed_; ++index) {
    Lane& lane = *link.lanes[index];
    // Whoever has said goodbye is no longer watched.
    if (!closing_ && now - lane.last_sent_ns > to_ns(config_.heartbeat_s / 4)) {
      lane.owes_heartbeat = true;
      lane.wake_sender.notify_one();
    }
    if (now - lane.heard_ns <= to_ns(config_.heartbeat_s) || departed_[static_cast<size_t>(link.peer)]) continue;
    const std::string which = link.lanes.size() == 1 ? ""
                                                     : " on connection " + std::to_string(index + 1) + " of " +
                                                           std::to_string(link.lanes.size());
    fail(Failure::PeerLost,
         who(rank_) + " has heard nothing from " + who(link.peer) + " for " + seconds(config_.heartbeat_s) + which +
             ": it is stopped, off, or unreachable" + where(),
         lock);
  }
}

// Where announcements go to partners only, the others hear from a rank that waits in this way.
void Engine::say_present(const Operation& operation) {
  const Frame& own = *operation.entries[static_cast<size_t>(operation.group->me)];
  Frame frame{own.header, allocate_payload(own.header.name_bytes)};
  frame.header.payload_bytes = own.header.name_bytes;
  frame.header.stream = kPresent;
  copy(frame.payload.get(), own.payload.get(), own.header.name_bytes);
  push_everywhere(std::move(frame));
}

// Not all have entered. False once that has failed the communicator.
bool Engine::watch_entry(Operation& operation, int64_t now, Lock& lock) {
  const bool direct = is_point_to_point(operation.request.kind);
  if (operation.pairwise && operation.announced) say_present(operation);
  std::string absent;
  std::string unheard;
  for (size_t index = 0; index < operation.entries.size(); ++index) {
    const bool awaited = direct ? static_cast<int>(index) == operation.request.root : true;
    const int rank = operation.group->ranks[index];
    if (!awaited || rank == rank_ || operation.has_entered(index)) continue;
    std::string& list = operation.present[index] ? unheard : absent;
    list += (list.empty() ? "" : ", ") + who(rank);
  }
  if (absent.empty()) absent = unheard;
  const double waited = static_cast<double>(now - operation.head_ns) * 1e-9;
  if (waited > config_.entry_timeout_s) {
    fail(Failure::Deadline,
         who(rank_) + " waited " + seconds(config_.entry_timeout_s) + " in " + operation.describe() + " for " + absent +
             " to enter it",
         lock);
    return false;
  }
  if (waited > std::min(60.0, config_.entry_timeout_s / 2) && !std::exchange(operation.warned, true)) {
    std::fprintf(stderr, "mlrun: %s has waited %s in %s for %s to enter it\n", who(rank_).c_str(),
                 seconds(waited).c_str(), operation.describe().c_str(), absent.c_str());
  }
  return true;
}

void Engine::watch_operations(int64_t now, Lock& lock) {
  std::map<uint32_t, bool> head_seen;
  for (const auto& [key, operation] : operations_) {
    const bool direct = is_point_to_point(operation->request.kind);
    // In a group, later calls wait for the earlier ones.
    if (!direct && std::exchange(head_seen[operation->group->id], true)) continue;
    if (operation->head_ns == 0) operation->head_ns = now;
    if (operation->absent > 0) {
      if (!watch_entry(*operation, now, lock)) return;
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
