// Which elements of a call go where: the algorithms, as tables. Pure functions of the request and the group, so that
// the bits of a result depend on nothing else.
#pragma once

#include "operation.h"

namespace mlrun::ring {

// Whether a collective's payload travels inside the announcements.
bool travels_with_announcement(const Request& request, int ranks);

// Whether a waiting caller makes the progress itself: above, two threads per socket are faster.
bool is_for_callers(const Request& request);

// The bytes of one element of a stream on the wire.
uint64_t wire_itemsize(const Request& request);

// Fills `operation.streams` (and scratch). `world_size` says which peers are neighbours: flows to others are windowed.
void make_streams(Operation& operation, int world_size);

// The end of a small collective, once every rank's announcement is in.
void finish_small(Operation& operation);

}  // namespace mlrun::ring
