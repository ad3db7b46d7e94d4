// Recursive doubling for small all-reduces on four ranks: first with one neighbour, then, with the sum of both, with
// the other. Two messages each instead of three, and every link is used once. The second message says by its coming
// that the pair behind it has entered, so the check of calls and the credit hold as for announcements that go all the
// way round.
#pragma once

#include "operation.h"

namespace mlrun::ring {

// Depends on the request and the group alone, so all ranks choose alike.
bool goes_pairwise(const Request& request, const Group& group, int world_size);

// The ranks of the group with which `rank` exchanges first and second.
int first_partner(int rank);
int second_partner(int rank);

// The reduction of the own data and the first partner's, as a frame for the second.
Frame partial_result(const Operation& operation);

// Reduces the two partial results into the target.
void finish_pairwise(Operation& operation);

}  // namespace mlrun::ring
