#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace mlrun::ring {

namespace {

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
#else
constexpr int kSendFlags = MSG_DONTWAIT;
#endif
constexpr int kSliceMs = 10;  // how late a blocked thread may notice that the engine gave up

void prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef SO_NOSIGPIPE
  setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Drops `bytes` written bytes from the front.
void advance(iovec*& parts, int& count, size_t bytes) {
  while (count > 0 && bytes >= parts->iov_len) {
    bytes -= parts->iov_len;
    ++parts;
    --count;
  }
  if (count > 0) {
    parts->iov_base = static_cast<char*>(parts->iov_base) + bytes;
    parts->iov_len -= bytes;
  }
}

}  // namespace

void Pacer::carry(uint64_t bytes) {
  // A sleep that lasted too long may be made up for, but not more than this.
  constexpr int64_t kCatchUpNs = 2000000;
  free_ns_ = std::max(free_ns_, now_ns() - kCatchUpNs);
  free_ns_ += static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / bytes_per_s_);
  const int64_t wait_ns = free_ns_ - now_ns();
  if (wait_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait_ns));
}

Lane::Lane(int fd, double pace_bytes_s, const std::atomic<int64_t>& give_up_ns)
    : pacer(pace_bytes_s), heard_ns(now_ns()), fd_(fd), give_up_ns_(give_up_ns), ahead_(kReadAhead) {
  prepare(fd);
}

Lane::~Lane() { ::close(fd_); }

Transfer Lane::send(iovec* parts, int count) {
  if (!backlog_.empty()) {
    iovec rest{backlog_.data(), backlog_.size()};
    const Transfer transfer = send_parts(&rest, 1);
    if (transfer != Transfer::Done) return transfer;
    backlog_.clear();
  }
  return send_parts(parts, count);
}

Transfer Lane::send_now(iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
  const ssize_t written = backlog_.empty() ? ::sendmsg(fd_, &message, kSendFlags) : 0;
  if (written < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    last_errno = errno;
    return Transfer::Lost;
  }
  if (written > 0) {
    bytes_sent.fetch_add(static_cast<uint64_t>(written), std::memory_order_relaxed);
    advance(parts, count, static_cast<size_t>(written));
  }
  for (; count > 0; ++parts, --count) {
    const char* rest = static_cast<const char*>(parts->iov_base);
    backlog_.insert(backlog_.end(), rest, rest + parts->iov_len);
  }
  return Transfer::Done;
}

Transfer Lane::send_parts(iovec* parts, int count) {
  advance(parts, count, 0);
  while (count > 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
    const ssize_t written = ::sendmsg(fd_, &message, kSendFlags);
    if (written >= 0) {
      bytes_sent.fetch_add(static_cast<uint64_t>(written), std::memory_order_relaxed);
      advance(parts, count, static_cast<size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      last_errno = errno;
      return Transfer::Lost;
    }
    const int64_t before = now_ns();
    if (before >= give_up_ns_.load(std::memory_order_relaxed)) return Transfer::GaveUp;
    pollfd poller{fd_, POLLOUT, 0};
    ::poll(&poller, 1, kSliceMs);
    send_blocked_ns.fetch_add(now_ns() - before, std::memory_order_relaxed);
  }
  return Transfer::Done;
}

ssize_t Lane::read(void* target, size_t bytes) {
  // Large reads go straight to their place.
  if (bytes >= kReadAhead / 2) return ::recv(fd_, target, bytes, MSG_DONTWAIT);
  iovec parts[2] = {{target, bytes}, {ahead_.data(), ahead_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t got = ::recvmsg(fd_, &message, MSG_DONTWAIT);
  if (got <= static_cast<ssize_t>(bytes)) return got;
  ahead_begin_ = 0;
  ahead_end_ = static_cast<size_t>(got) - bytes;
  return static_cast<ssize_t>(bytes);
}

Transfer Lane::receive(void* target, size_t bytes) {
  char* to = static_cast<char*>(target);
  const size_t buffered = std::min(bytes, ahead_end_ - ahead_begin_);
  std::memcpy(to, ahead_.data() + ahead_begin_, buffered);
  ahead_begin_ += buffered;
  bytes_received.fetch_add(buffered, std::memory_order_relaxed);
  to += buffered;
  bytes -= buffered;
  while (bytes > 0) {
    const ssize_t got = read(to, bytes);
    if (got > 0) {
      heard_ns.store(now_ns(), std::memory_order_relaxed);
      bytes_received.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
      to += got;
      bytes -= static_cast<size_t>(got);
      continue;
    }
    if (now_ns() >= give_up_ns_.load(std::memory_order_relaxed)) return Transfer::GaveUp;
    if (got == 0) {
      last_errno = 0;
      return Transfer::Lost;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      last_errno = errno;
      return Transfer::Lost;
    }
    const int64_t before = now_ns();
    readable(-1);
    receive_blocked_ns.fetch_add(now_ns() - before, std::memory_order_relaxed);
  }
  return Transfer::Done;
}

bool Lane::has_input() {
  if (has_read_ahead()) return true;
  const ssize_t got = ::recv(fd_, ahead_.data(), ahead_.size(), MSG_DONTWAIT);
  if (got > 0) {
    heard_ns.store(now_ns(), std::memory_order_relaxed);
    ahead_begin_ = 0;
    ahead_end_ = static_cast<size_t>(got);
  }
  // An end or an error is for receive() to tell.
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool Lane::readable(int timeout_ms) const {
  pollfd poller{fd_, POLLIN, 0};
  return ::poll(&poller, 1, timeout_ms) > 0;
}

void wait_for_input(const std::vector<Link*>& links, int timeout_ms) {
  std::vector<pollfd> pollers;
  for (Link* link : links) pollers.push_back({link->first().descriptor(), POLLIN, 0});
  ::poll(pollers.data(), static_cast<nfds_t>(pollers.size()), timeout_ms);
}

void Lane::stop_receiving() { ::shutdown(fd_, SHUT_RD); }

int64_t Lane::retransmits() const {
#if defined(__linux__)
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return info.tcpi_total_retrans;
#elif defined(TCP_CONNECTION_INFO)
  tcp_connection_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd_, IPPROTO_TCP, TCP_CONNECTION_INFO, &info, &size) == 0) {
    return static_cast<int64_t>(info.tcpi_txretransmitpackets);
  }
#endif
  return -1;
}

}  // namespace mlrun::ring
