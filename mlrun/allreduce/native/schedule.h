// Which elements of a call go where: the algorithms, as tables. Pure functions of the request and the group, so that
// the bits of a result depend on nothing else.
#pragma once

#include "operation.h"

namespace mlrun::ring {

// Whether a collective's payload travels inside the announcements.
bool travels_with_announcement(const Request& request, int ranks);

// How many elements of a stream `segment_bytes` are.
uint64_t wire_itemsize(const Request& request);

// Fills `operation.streams` (and scratch). `world_size` says which peers are neighbours: flows to others are windowed.
void make_streams(Operation& operation, int world_size);

// The end of a small collective, once every rank's announcement is in.
void finish_small(Operation& operation);

}  // namespace mlrun::ring
