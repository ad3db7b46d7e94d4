// A Stream is the schedule of one flow of elements through this rank: what is sent, in which order, and where what is
// received goes. Positions count elements from the start of the flow; both ends of a link lay the same flow out alike.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "types.h"

namespace mlrun::ring {

constexpr int64_t kOwnData = -1;
constexpr int64_t kNothing = -1;

// `count` elements from `data`. Passed-on data may be sent as far as it has come in: element i of the run once
// `needs` + i + 1 elements have been received.
struct SendRun {
  uint64_t start;
  uint64_t count;
  const char* data;
  int64_t needs;
};

// Where `count` elements go: copied to `target`, or reduced with `operand` into it. `last`: the reduction ends here.
struct ReceiveRun {
  uint64_t start;
  uint64_t count;
  char* target;
  const char* operand;
  bool last;
  // The first sent element that this run overwrites. It came back from the peer, so it has been sent; but the thread
  // that sent it may not have returned yet.
  int64_t overwrites;
};

// Which elements of a flow are done. Several sockets may finish out of order.
class Progress {
 public:
  void add(uint64_t begin, uint64_t end) {
    if (begin != prefix_) {
      islands_.emplace(begin, end);
      return;
    }
    prefix_ = end;
    while (!islands_.empty() && islands_.begin()->first == prefix_) {
      prefix_ = islands_.begin()->second;
      islands_.erase(islands_.begin());
    }
  }
  uint64_t prefix() const { return prefix_; }

 private:
  uint64_t prefix_ = 0;
  std::map<uint64_t, uint64_t> islands_;
};

struct Stream {
  uint8_t index = 0;
  int to = -1;    // world rank, -1: nothing is sent
  int from = -1;  // world rank, -1: nothing is received
  std::vector<SendRun> send_runs;
  std::vector<ReceiveRun> receive_runs;
  // How many receive runs may be ahead of the finished send runs, because they share scratch; 0: all.
  uint64_t scratch_slots = 0;
  // How many elements may be under way where other ranks must pass them on; 0: all.
  uint64_t window_in = 0;
  uint64_t window_out = 0;

  uint64_t send_total = 0;
  uint64_t receive_total = 0;
  uint64_t claimed = 0;   // handed to a sending thread
  uint64_t granted = 0;   // what the receiver has room for
  uint64_t credited = 0;  // what this rank has told its sender it has room for
  Progress sent;
  Progress received;

  void send(uint64_t count, const char* data, int64_t needs);
  void receive(uint64_t count, char* target, const char* operand, bool last, int64_t overwrites = kNothing);
  // Called once the runs are complete.
  void open();

  bool finished() const { return sent.prefix() == send_total && received.prefix() == receive_total; }
  const SendRun& send_run_at(uint64_t position) const;
  const ReceiveRun& receive_run_at(uint64_t position) const;
  // How many elements may be sent now, from `claimed` on, without crossing into another run.
  uint64_t sendable() const;
  // Whether what `count` received elements from `position` on overwrite has been sent.
  bool may_store(uint64_t position, uint64_t count) const;
  // How far the sender may go.
  uint64_t receive_limit() const;
  // Finished send runs and receive runs: the steps of the collective.
  uint64_t steps_received() const;

 private:
  uint64_t scratch_limit(uint64_t sent_runs) const;
};

}  // namespace mlrun::ring
