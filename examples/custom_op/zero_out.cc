// zero_out: of each sample only the first value is kept, the others become 0.
//
// A custom operation of TensorFlow, for the CPU: registered, implemented, and built by `custom_ops` in a spec.

#include <algorithm>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The operation: what goes in, what comes out, and that both have the same shape.
REGISTER_OP("ZeroOut")
    .Input("values: float")
    .Output("kept: float")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Keeps the first value of each row and sets the others to 0.");

// The kernel: how the CPU computes it.
class ZeroOut : public OpKernel {
 public:
  explicit ZeroOut(OpKernelConstruction* construction) : OpKernel(construction) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    OP_REQUIRES(context, values.dims() >= 1,
                tensorflow::errors::InvalidArgument("zero_out takes rows, and this has no dimension"));
    Tensor* kept = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, values.shape(), &kept));

    const auto from = values.flat_inner_dims<float>();
    auto to = kept->flat_inner_dims<float>();
    to.setZero();
    for (Eigen::Index row = 0; row < from.dimension(0) && from.dimension(1) > 0; ++row) {
      to(row, 0) = from(row, 0);
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("ZeroOut").Device(tensorflow::DEVICE_CPU), ZeroOut);

}  // namespace
