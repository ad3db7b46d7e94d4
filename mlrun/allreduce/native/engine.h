// The engine of one rank: its links, its threads and the calls under way. One mutex guards the book-keeping; bytes move
// without it. Two threads per socket, one for each direction, so that sending and receiving always progress together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lane.h"
#include "operation.h"

namespace mlrun::ring {

struct Config {
  int rank = 0;
  std::vector<std::string> hosts;  // one per rank
  std::vector<int> next;           // sockets to rank + 1, owned by the engine from now on
  std::vector<int> previous;       // sockets to rank - 1; empty below three ranks
  uint32_t generation = 0;
  double heartbeat_s = 10;
  double entry_timeout_s = 1800;
  double progress_timeout_s = 30;
  bool checksum = false;
  double pace_bytes_s = 0;  // per socket; 0: not paced
  double pace_delay_s = 0;  // needs the ranks to share a clock, so one machine

  int size() const { return static_cast<int>(hosts.size()); }
};

struct LinkCounters {
  int peer;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  double send_blocked_s;
  double receive_blocked_s;
  int64_t retransmits;  // -1: unknown
};

// While one exists, this thread writes what it makes ready to send itself, and wakes nobody for it.
class DirectSending {
 public:
  explicit DirectSending(bool wanted) {
    on = wanted;
    owed = false;
  }
  ~DirectSending() { on = false; }
  DirectSending(const DirectSending&) = delete;
  DirectSending& operator=(const DirectSending&) = delete;
  static thread_local bool on;
  static thread_local bool owed;  // a sending thread wasn't woken, although there is something for it
};

class Engine {
 public:
  explicit Engine(Config config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<Group>& world() const { return world_; }
  int size() const { return size_; }

  // Starts a call. Calls of one group are numbered in the order in which they arrive here.
  // Throws RingError once the engine has failed.
  std::shared_ptr<Operation> issue(const std::shared_ptr<Group>& group, Request request);
  // True once ended; throws the operation's RingError. Negative: without end.
  bool wait(Operation& operation, double timeout_s);
  bool done(Operation& operation);
  // (first byte, last byte) in seconds; nothing before the end or where no byte moved.
  std::optional<std::pair<double, double>> times(Operation& operation);

  // The group of these ranks of `parent` (indices there), after all of `parent` have agreed on them.
  std::shared_ptr<Group> make_group(const Group& parent, const std::vector<int>& ranks, uint32_t id);
  uint32_t next_group_id(Group& parent);

  void abort(const std::string& reason);
  void close();
  std::vector<LinkCounters> counters();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Group, Kind of a point-to-point call (or -1), sequence, peer and tag of a point-to-point call (or 0).
  using CallKey = std::tuple<uint32_t, int, uint64_t, int, int>;

  // engine.cpp: life, issue, completion
  void prepare(Operation& operation);
  void announce_waiting();
  void announce(Operation& operation);
  void push_partial(Operation& operation);
  Frame announcement_of(Operation& operation);
  void complete_if_ready(const std::shared_ptr<Operation>& operation, Lock& lock);
  void end(const std::shared_ptr<Operation>& operation);
  bool may_leave() const;
  CallKey key_of(const Operation& operation) const;
  std::string who(int rank) const;

  // failure.cpp
  void fail(Failure failure, const std::string& text, Lock& lock);
  void free_waiters_once_told(Lock& lock);
  void tell(Link& link, Frame frame);
  void lost_sending(Link& link, const Lane& lane, Lock& lock);
  void lost_receiving(Link& link, const Lane& lane, Lock& lock);
  void judge(Link& link, Lock& lock);
  void check_departed(Lock& lock);
  std::string where() const;
  std::string step_of(const Operation& operation) const;
  void watch();
  void watch_link(Link& link, int64_t now, Lock& lock);
  void watch_operations(int64_t now, Lock& lock);
  bool watch_entry(Operation& operation, int64_t now, Lock& lock);
  void say_present(const Operation& operation);

  // sending.cpp
  void send_loop(Link& link, Lane& lane);
  bool send_one(Link& link, Lane& lane, Lock& lock);
  bool send_control(Link& link, Lane& lane, Lock& lock);
  bool send_heartbeat(Link& link, Lane& lane, Lock& lock);
  bool send_frame(Link& link, Lane& lane, Frame frame, Lock& lock, bool now = false);
  bool send_forwarded(Link& link, Lane& lane, Lock& lock);
  bool send_stream(Link& link, Lane& lane, Lock& lock, bool now = false);
  Transfer write(Lane& lane, FrameHeader& header, const void* payload, bool now = false);
  void push_control(Link& link, Frame frame);
  void push_everywhere(Frame frame);
  void push_to(int destination, Frame frame);
  void wake_senders(Link& link);
  void send_control_now(Lock& lock);
  bool flush_backlog(Link& link, Lane& lane, Lock& lock);
  void give_credit(Operation& operation, Stream& stream);
  Link& link_towards(int rank);

  // receiving.cpp
  void receive_loop(Link& link, Lane& lane);
  void make_progress(Operation& operation, Lock& lock);
  bool receive_one(Link& link, Lane& lane);
  bool accept_header(Link& link, FrameHeader& header);
  bool read_payload(Link& link, Lane& lane, Frame& frame);
  bool verify(Link& link, const FrameHeader& header, const void* payload);
  bool take_data(Link& link, Lane& lane, const FrameHeader& header);
  bool pass_on(Link& link, Lane& lane, const FrameHeader& header);
  void take_announcement(Frame frame, Lock& lock);
  void enter(const std::shared_ptr<Operation>& operation, Frame frame, Lock& lock);
  void take_credit(const FrameHeader& header);
  bool store(Link& link, Lane& lane, const Operation& operation, const ReceiveRun& run, const FrameHeader& header);
  static CallKey key_of(const FrameHeader& header);
  std::shared_ptr<Operation> find(const FrameHeader& header) const;

  const Config config_;
  const int rank_;
  const int size_;
  const bool callers_progress_;  // paced links are for the threads, which may sleep
  const bool crowded_;           // more ranks on this host than it has cores
  const std::shared_ptr<Group> world_;
  std::vector<std::unique_ptr<Link>> links_;  // next, previous
  std::atomic<int64_t> give_up_ns_;

  std::mutex mutex_;
  std::map<CallKey, std::shared_ptr<Operation>> operations_;
  std::deque<std::shared_ptr<Operation>> unannounced_;
  std::map<std::pair<CallKey, int>, Frame> early_;  // announcements of calls that this rank hasn't made yet, by source
  std::vector<std::pair<std::shared_ptr<Operation>, Stream*>> sending_;  // streams with something left to send
  std::vector<bool> departed_;
  std::optional<RingError> failed_;
  bool told_ = false;  // the neighbours know why, or can't be told
  bool stopping_ = false;
  bool closing_ = false;
  int64_t data_ns_;                  // when data last moved
  std::condition_variable changed_;  // for close() and abort()
  std::condition_variable watch_;
  std::thread watcher_;
};

}  // namespace mlrun::ring
