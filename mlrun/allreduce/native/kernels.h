// Arithmetic on runs of elements. Buffers may be unaligned. Compiled once per instruction set; the widest that this
// processor has is chosen at first use. Results are the same bits on all of them.
#pragma once

#include "types.h"

namespace mlrun::ring {

struct Kernels {
  // target[i] = operand[i] (op) incoming[i]; 16-bit floats are reduced in float32. Average sums: see `divide`.
  void (*reduce)(DType dtype, ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count);
  // The same for a float32 target and operand and 16-bit floats that came in.
  void (*reduce_wire)(DType wire, ReduceOp op, void* target, const void* operand, const void* incoming, uint64_t count);
  // Divide by the number of ranks; integers are truncated towards zero.
  void (*divide)(DType dtype, void* target, uint64_t count, int ranks);
  // float32 to 16-bit floats (round to nearest, ties to even), and back.
  void (*narrow)(DType wire, void* target, const void* source, uint64_t count);
  void (*widen)(DType wire, void* target, const void* source, uint64_t count);
};

const Kernels& kernels();

namespace baseline {
extern const Kernels table;
}
#ifdef MLRUN_X86_LEVELS
namespace x86_64_v3 {
extern const Kernels table;
}
namespace x86_64_v4 {
extern const Kernels table;
}
#endif

}  // namespace mlrun::ring
