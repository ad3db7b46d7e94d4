#include "stream.h"

#include "check.h"

using namespace mlrun::ring;

TEST(progress_counts_only_what_is_complete_from_the_start) {
  Progress progress;
  progress.add(10, 20);
  progress.add(30, 40);
  CHECK(progress.prefix() == 0);
  progress.add(0, 10);
  CHECK(progress.prefix() == 20);
  progress.add(20, 30);
  CHECK(progress.prefix() == 40);
}

TEST(passed_on_elements_wait_for_what_comes_in) {
  char memory[8] = {};
  Stream stream;
  stream.to = stream.from = 1;
  stream.send(4, memory, kOwnData);
  stream.receive(4, memory + 4, nullptr, false);
  stream.send(4, memory + 4, 0);
  stream.open();
  CHECK(stream.sendable() == 4);
  stream.claimed = 4;
  CHECK(stream.sendable() == 0);
  stream.received.add(0, 3);
  CHECK(stream.sendable() == 3);
}

TEST(a_window_bounds_what_is_under_way) {
  char memory[10] = {};
  Stream sender;
  sender.window_out = 4;
  sender.send(10, memory, kOwnData);
  sender.open();
  CHECK(sender.sendable() == 4);
  Stream receiver;
  receiver.window_in = 4;
  receiver.receive(10, memory, nullptr, false);
  receiver.open();
  CHECK(receiver.receive_limit() == 4);
  receiver.received.add(0, 3);
  CHECK(receiver.receive_limit() == 7);
}

TEST(shared_scratch_is_not_overwritten_before_it_is_sent) {
  char memory[64] = {};
  Stream stream;
  stream.scratch_slots = 2;
  for (int run = 0; run < 4; ++run) {
    stream.send(8, memory, run == 0 ? kOwnData : (run - 1) * 8);
    stream.receive(8, memory, memory, false);
  }
  stream.open();
  CHECK(stream.granted == 16);
  CHECK(stream.receive_limit() == 16);
  stream.sent.add(0, 16);  // receive run 2 takes the memory that send run 1 has sent
  CHECK(stream.receive_limit() == 24);
}
