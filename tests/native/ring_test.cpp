// Rings of engines over loopback sockets, one thread per rank. Run under the sanitizers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "check.h"
#include "engine.h"

using namespace mlrun::ring;

namespace {

std::pair<int, int> socket_pair() {
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(bind(server, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(listen(server, 1) == 0);
  CHECK(getsockname(server, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(one, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int other = accept(server, nullptr, nullptr);
  CHECK(other >= 0);
  ::close(server);
  return {one, other};
}

std::vector<std::unique_ptr<Engine>> make_ring(int size, int sockets, Config settings = {}) {
  std::vector<Config> configs(static_cast<size_t>(size), settings);
  for (int rank = 0; rank < size; ++rank) {
    configs[static_cast<size_t>(rank)].rank = rank;
    for (int other = 0; other < size; ++other) {
      configs[static_cast<size_t>(rank)].hosts.push_back("host" + std::to_string(other));
    }
  }
  for (int rank = 0; rank < (size > 2 ? size : size - 1); ++rank) {
    for (int i = 0; i < sockets; ++i) {
      const auto [one, other] = socket_pair();
      Config& peer = configs[static_cast<size_t>((rank + 1) % size)];
      configs[static_cast<size_t>(rank)].next.push_back(one);
      (size > 2 ? peer.previous : peer.next).push_back(other);
    }
  }
  std::vector<std::unique_ptr<Engine>> ring;
  for (const Config& config : configs) ring.push_back(std::make_unique<Engine>(config));
  return ring;
}

void on_each(std::vector<std::unique_ptr<Engine>>& ring, const std::function<void(Engine&, int)>& work) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ring.size(); ++rank) {
    threads.emplace_back([&, rank] { work(*ring[rank], static_cast<int>(rank)); });
  }
  for (auto& thread : threads) thread.join();
}

Request request_of(Kind kind, std::vector<float>& source, std::vector<float>& target, uint64_t count) {
  Request request;
  request.kind = kind;
  request.dtype = DType::Float32;
  request.count = count;
  request.source = reinterpret_cast<const char*>(source.data());
  request.target = reinterpret_cast<char*>(target.data());
  return request;
}

void run(Engine& engine, Request request) { CHECK(engine.wait(*engine.issue(engine.world(), std::move(request)), 60)); }

}  // namespace

TEST(collectives_of_all_sizes) {
  for (const int size : {1, 2, 3, 4, 5}) {
    for (const int sockets : {1, 2}) {
      auto ring = make_ring(size, sockets);
      on_each(ring, [&](Engine& engine, int rank) {
        const auto n = static_cast<size_t>(size);
        const float sum = static_cast<float>(size * (size - 1) / 2);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{999}, size_t{200001}}) {
          std::vector<float> own(count, static_cast<float>(rank));
          run(engine, request_of(Kind::AllReduce, own, own, count));
          for (const float value : own) CHECK(value == sum);
          std::vector<float> whole(count * n, static_cast<float>(rank));
          run(engine, request_of(Kind::ReduceScatter, whole, own, count));
          for (const float value : own) CHECK(value == sum);
          std::fill(own.begin(), own.end(), static_cast<float>(rank));
          run(engine, request_of(Kind::AllGather, own, whole, count));
          for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == static_cast<float>(i / count));
          Request broadcast = request_of(Kind::Broadcast, own, own, count);
          broadcast.root = size - 1;
          run(engine, broadcast);
          for (const float value : own) CHECK(value == static_cast<float>(size - 1));
        }
      });
      on_each(ring, [](Engine& engine, int) { engine.close(); });
    }
  }
}

TEST(many_in_flight_from_several_threads) {
  auto ring = make_ring(3, 2);
  on_each(ring, [&](Engine& engine, int rank) {
    std::vector<int> group_ranks = {2, 0};
    const auto group = engine.make_group(*engine.world(), group_ranks, 77);
    std::thread other([&] {
      if (group->me < 0) return;
      for (int i = 0; i < 50; ++i) {
        std::vector<float> data(30000, 1);
        CHECK(engine.wait(*engine.issue(group, request_of(Kind::AllReduce, data, data, data.size())), 60));
        CHECK(data.front() == 2 && data.back() == 2);
      }
    });
    std::vector<std::vector<float>> data;
    std::vector<std::shared_ptr<Operation>> operations;
    for (size_t i = 0; i < 60; ++i) data.emplace_back(1 + 700 * i, static_cast<float>(rank));
    for (auto& each : data) {
      operations.push_back(engine.issue(engine.world(), request_of(Kind::AllReduce, each, each, each.size())));
    }
    for (size_t i = 0; i < operations.size(); ++i) {
      CHECK(engine.wait(*operations[i], 60));
      CHECK(data[i].front() == 3 && data[i].back() == 3);
    }
    other.join();
  });
}

TEST(abort_in_the_middle_frees_everyone) {
  auto ring = make_ring(4, 2);
  on_each(ring, [&](Engine& engine, int rank) {
    std::vector<float> data(500000, 1);
    try {
      for (int i = 0;; ++i) {
        if (rank == 2 && i == 5) engine.abort("enough");
        run(engine, request_of(Kind::AllReduce, data, data, data.size()));
      }
    } catch (const RingError& error) {
      CHECK(error.failure == Failure::Aborted);
      CHECK(std::string(error.what()) == "rank 2 (host2) aborted: enough");
    }
  });
}

TEST(an_engine_that_goes_is_noticed) {
  auto ring = make_ring(3, 1);
  on_each(ring, [&](Engine& engine, int rank) {
    if (rank == 1) {
      ring[1].reset();
      return;
    }
    std::vector<float> data(500000, 1);
    try {
      run(engine, request_of(Kind::AllReduce, data, data, data.size()));
      CHECK(false);
    } catch (const RingError& error) {
      CHECK(error.failure == Failure::PeerLost);
    }
  });
}

TEST(a_rank_that_stays_away_is_named) {
  Config settings;
  settings.entry_timeout_s = 0.2;
  auto ring = make_ring(3, 1, settings);
  on_each(ring, [&](Engine& engine, int rank) {
    if (rank == 0) return;
    std::vector<float> data(10, 1);
    try {
      run(engine, request_of(Kind::AllReduce, data, data, data.size()));
      CHECK(false);
    } catch (const RingError& error) {
      CHECK(error.failure == Failure::Deadline);
      CHECK(std::string(error.what()).find("for rank 0 (host0) to enter it") != std::string::npos);
    }
  });
}
