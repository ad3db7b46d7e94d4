// What an all-reduce could reach at best: plain sockets move its bytes both ways at once while its additions are made,
// with no headers, no order and no waiting for a neighbour's sums.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using mlrun::ring::DType;
using mlrun::ring::kernels;
using mlrun::ring::ReduceOp;

namespace {

// One socket's part of the buffer; positions past its end start again at its front.
struct Region {
  char* data;
  uint64_t size;

  char* at(uint64_t position) const { return data + position % size; }
  uint64_t left(uint64_t position) const { return size - position % size; }
};

void send_all(int fd, const Region& region, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t sent = send(fd, region.at(done), std::min(bytes - done, region.left(done)), 0);
    if (sent < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "send");
    if (sent > 0) done += static_cast<uint64_t>(sent);
  }
}

void receive_exactly(int fd, char* target, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = recv(fd, target + done, bytes - done, 0);
    if (got == 0) throw std::runtime_error("a rank of the raw copy has gone");
    if (got < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "recv");
    if (got > 0) done += static_cast<uint64_t>(got);
  }
}

void receive_all(int fd, const Region& region, uint64_t bytes, uint64_t added, uint64_t segment) {
  std::vector<char> scratch(segment);
  for (uint64_t done = 0; done < bytes;) {
    const bool adds = done < added;
    const uint64_t some = std::min<uint64_t>({segment, (adds ? added : bytes) - done, region.left(done)});
    char* target = region.at(done);
    receive_exactly(fd, adds ? scratch.data() : target, some);
    if (adds) {
      kernels().reduce(DType::Float32, ReduceOp::Sum, target, target, scratch.data(), some / sizeof(float));
    }
    done += some;
  }
}

// Each socket sends and receives `bytes`, of which the first `added` are summed into its part of the buffer.
void raw_copy(const std::vector<int>& fds, uintptr_t address, uint64_t size, uint64_t bytes, uint64_t added,
              uint64_t segment) {
  const uint64_t part = size / fds.size() / sizeof(float) * sizeof(float);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(2 * fds.size());
  const auto guarded = [&failures](size_t slot, auto work) {
    return [&failures, slot, work] {
      try {
        work();
      } catch (...) {
        failures[slot] = std::current_exception();
      }
    };
  };
  for (size_t i = 0; i < fds.size(); ++i) {
    const Region region{reinterpret_cast<char*>(address) + i * part, part};
    const int fd = fds[i];
    threads.emplace_back(guarded(2 * i, [=] { send_all(fd, region, bytes); }));
    auto receive = guarded(2 * i + 1, [=] { receive_all(fd, region, bytes, added, segment); });
    if (i + 1 < fds.size()) {
      threads.emplace_back(receive);
    } else {
      receive();
    }
  }
  for (auto& each : threads) each.join();
  for (const auto& each : failures) {
    if (each) std::rethrow_exception(each);
  }
}

}  // namespace

NB_MODULE(_limit, m) {
  m.def("raw_copy", &raw_copy, nb::arg("fds"), nb::arg("address"), nb::arg("size"), nb::arg("bytes"), nb::arg("added"),
        nb::arg("segment"), nb::call_guard<nb::gil_scoped_release>());
}
