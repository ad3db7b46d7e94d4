#include "stream.h"

namespace mlrun::ring {

namespace {

template <typename Runs>
size_t run_index(const Runs& runs, uint64_t position) {
  const auto after = std::upper_bound(runs.begin(), runs.end(), position,
                                      [](uint64_t value, const auto& run) { return value < run.start; });
  return static_cast<size_t>(after - runs.begin()) - 1;
}

template <typename Runs>
uint64_t finished_runs(const Runs& runs, uint64_t prefix) {
  if (runs.empty()) return 0;
  const size_t at = run_index(runs, prefix);
  return at + (prefix >= runs[at].start + runs[at].count ? 1 : 0);
}

}  // namespace

void Stream::send(uint64_t count, const char* data, int64_t needs) {
  if (count > 0) send_runs.push_back({send_total, count, data, needs});
  send_total += count;
}

void Stream::receive(uint64_t count, char* target, const char* operand, bool last, int64_t overwrites) {
  if (count > 0) receive_runs.push_back({receive_total, count, target, operand, last, overwrites});
  receive_total += count;
}

void Stream::open() {
  granted = send_total;
  if (window_out > 0) granted = std::min(granted, window_out);
  // Sender and receiver have the same number of runs of the same lengths.
  if (scratch_slots > 0 && send_runs.size() > scratch_slots) {
    granted = std::min(granted, send_runs[scratch_slots].start);
  }
  credited = receive_limit();
}

const SendRun& Stream::send_run_at(uint64_t position) const { return send_runs[run_index(send_runs, position)]; }

const ReceiveRun& Stream::receive_run_at(uint64_t position) const {
  return receive_runs[run_index(receive_runs, position)];
}

uint64_t Stream::sendable() const {
  if (claimed == send_total) return 0;
  const SendRun& run = send_run_at(claimed);
  uint64_t end = run.start + run.count;
  if (run.needs != kOwnData) {
    const uint64_t needs = static_cast<uint64_t>(run.needs);
    if (received.prefix() <= needs) return 0;
    end = std::min(end, run.start + received.prefix() - needs);
  }
  end = std::min(end, granted);
  return end > claimed ? end - claimed : 0;
}

bool Stream::may_store(uint64_t position, uint64_t count) const {
  const ReceiveRun& run = receive_run_at(position);
  return run.overwrites == kNothing ||
         sent.prefix() >= static_cast<uint64_t>(run.overwrites) + (position - run.start) + count;
}

// Receive run i + slots overwrites what send run i + 1 sends.
uint64_t Stream::scratch_limit(uint64_t sent_runs) const {
  const uint64_t blocked = std::max<uint64_t>(sent_runs, 1) + scratch_slots - 1;
  return blocked < receive_runs.size() ? receive_runs[blocked].start : receive_total;
}

uint64_t Stream::receive_limit() const {
  uint64_t limit = receive_total;
  if (scratch_slots > 0) limit = std::min(limit, scratch_limit(finished_runs(send_runs, sent.prefix())));
  if (window_in > 0) limit = std::min(limit, received.prefix() + window_in);
  return limit;
}

uint64_t Stream::steps_received() const { return finished_runs(receive_runs, received.prefix()); }

}  // namespace mlrun::ring
