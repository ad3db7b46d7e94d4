// A Lane is one TCP socket to a neighbour; a Link is all of them. Reading and writing here is plain: what is read or
// written, and when, is the engine's business.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "frame.h"

namespace mlrun::ring {

// Simulation: a wire of `bytes_per_s` (0: as fast as it goes).
class Pacer {
 public:
  explicit Pacer(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  bool on() const { return bytes_per_s_ > 0; }
  // Sleeps until a wire of this rate had carried what was sent before and `bytes` more.
  void carry(uint64_t bytes);

 private:
  double bytes_per_s_;
  int64_t free_ns_ = 0;
};

enum class Transfer { Done, Lost, GaveUp };

class Lane {
 public:
  // Takes the socket over. Both directions give up once `give_up_ns` has passed.
  Lane(int fd, double pace_bytes_s, const std::atomic<int64_t>& give_up_ns);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Writes all of it. Changes the vectors.
  Transfer send(iovec* parts, int count);
  // Writes what goes without waiting and keeps the rest as backlog, which the next send() writes first.
  Transfer send_now(iovec* parts, int count);
  // Fills `target`.
  Transfer receive(void* target, size_t bytes);
  // Whether a frame has begun to come in. Doesn't wait.
  bool has_input();
  bool has_read_ahead() const { return ahead_begin_ < ahead_end_; }
  bool has_backlog() const { return !backlog_.empty(); }
  // Waits at most `timeout_ms` for something to read; -1: without end.
  bool readable(int timeout_ms) const;
  int descriptor() const { return fd_; }
  // Reading ends now, here and on the peer's side of nothing: what was written still goes out.
  void stop_receiving();
  // Packets sent again since the socket was opened, or -1 where the system doesn't tell.
  int64_t retransmits() const;
  // The error of the last Transfer::Lost; 0: the peer ended the stream.
  int last_errno = 0;

  std::thread sender;
  std::thread receiver;
  std::condition_variable wake_sender;
  bool sending = false;          // a thread owns the sending side (the engine's mutex)
  bool receiving = false;        // a thread owns the receiving side (the engine's mutex)
  int64_t claimed_until_ns = 0;  // a caller makes its own progress: the receiving thread stays away
  std::condition_variable wake_receiver;
  bool prefers_forwarded = false;
  bool owes_heartbeat = false;  // the engine's mutex
  int64_t last_sent_ns = 0;     // the engine's mutex
  Pacer pacer;
  std::vector<char> send_scratch;
  std::vector<char> receive_scratch;

  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<int64_t> send_blocked_ns{0};
  std::atomic<int64_t> receive_blocked_ns{0};
  std::atomic<int64_t> heard_ns;

 private:
  // Small frames come with one read: what follows a header is read along with it.
  static constexpr size_t kReadAhead = 16 << 10;

  Transfer send_parts(iovec* parts, int count);
  ssize_t read(void* target, size_t bytes);

  const int fd_;
  const std::atomic<int64_t>& give_up_ns_;
  std::vector<char> backlog_;
  std::vector<char> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
};

struct Link {
  int peer = -1;
  std::vector<std::unique_ptr<Lane>> lanes;
  // Guarded by the engine's mutex.
  std::deque<Frame> control;    // announcements, credits and the like, before any data
  std::deque<Frame> forwarded;  // data of other ranks
  int64_t ended_ns = 0;         // when a socket of it was first found broken
  std::string ended_why;
  bool heard_out = false;  // the first socket has nothing more to say
  bool closed = false;     // the peer said goodbye and closed

  Lane& first() { return *lanes.front(); }
};

// Sleeps until the first socket of one of `links` has something to read, at most `timeout_ms`.
void wait_for_input(const std::vector<Link*>& links, int timeout_ms);

}  // namespace mlrun::ring
