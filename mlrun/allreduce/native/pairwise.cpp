#include "pairwise.h"

#include <algorithm>

#include "kernels.h"
#include "schedule.h"

namespace mlrun::ring {

namespace {

// All ranks reduce in the same order, so that they get the same bits, NaNs included.
void reduce_in_order(const Operation& operation, char* target, const Frame& mine, int peer) {
  const Request& request = operation.request;
  const char* low = mine.body();
  const char* high = operation.entries[static_cast<size_t>(peer)]->body();
  if (peer < operation.group->me) std::swap(low, high);
  kernels().reduce(request.dtype, request.op, target, low, high, request.count);
}

}  // namespace

bool goes_pairwise(const Request& request, const Group& group, int world_size) {
  return request.kind == Kind::AllReduce && request.wire == kNoWire && group.id == 0 && world_size == 4 &&
         travels_with_announcement(request, world_size);
}

int first_partner(int rank) { return rank ^ 1; }

int second_partner(int rank) { return 3 - rank; }

bool Operation::has_entered(size_t group_rank) const {
  const int me = group->me;
  const int behind = first_partner(second_partner(me));
  if (pairwise && static_cast<int>(group_rank) == behind) group_rank = static_cast<size_t>(second_partner(me));
  return entries[group_rank].has_value();
}

Frame partial_result(const Operation& operation) {
  const Frame& own = *operation.entries[static_cast<size_t>(operation.group->me)];
  Frame frame{own.header, allocate_payload(own.header.payload_bytes)};
  copy(frame.payload.get(), own.payload.get(), own.header.name_bytes);
  reduce_in_order(operation, frame.payload.get() + own.header.name_bytes, own, first_partner(operation.group->me));
  return frame;
}

void finish_pairwise(Operation& operation) {
  const Request& request = operation.request;
  reduce_in_order(operation, request.target, *operation.partial, second_partner(operation.group->me));
  if (request.op == ReduceOp::Average) {
    kernels().divide(request.dtype, request.target, request.count, operation.group->size());
  }
}

}  // namespace mlrun::ring
