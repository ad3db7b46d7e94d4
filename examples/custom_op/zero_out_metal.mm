// zero_out on the GPU of a Mac, beside zero_out.cc. UNTESTED: nobody has built or run this yet.
//
// A kernel for TensorFlow's pluggable Metal device: it takes the device's own command buffer, so that it runs in order
// with the operations around it. What the plug-in hands out as a stream is described by TF_MetalStream.

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_tensor.h"

@protocol TF_MetalStream
- (dispatch_queue_t)queue;
- (id<MTLCommandBuffer>)currentCommandBuffer;
- (void)commit;
@end

struct SP_Stream_st {
  id<TF_MetalStream> stream;
};

namespace {

NSString* const kShader = @R"(
#include <metal_stdlib>
kernel void zero_out(device const float* values [[buffer(0)]], device float* kept [[buffer(1)]],
                     constant uint& row [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  kept[i] = i % row == 0 ? values[i] : 0.0f;
}
)";

struct Status {
  TF_Status* const status = TF_NewStatus();
  ~Status() { TF_DeleteStatus(status); }
  bool ok() const { return TF_GetCode(status) == TF_OK; }
};

id<MTLComputePipelineState> Pipeline(id<MTLDevice> device) {
  static id<MTLComputePipelineState> pipeline;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    id<MTLLibrary> library = [device newLibraryWithSource:kShader options:nil error:nil];
    pipeline = [device newComputePipelineStateWithFunction:[library newFunctionWithName:@"zero_out"] error:nil];
  });
  return pipeline;
}

void Compute(void*, TF_OpKernelContext* context) {
  Status status;
  TF_Tensor* values = nullptr;
  TF_GetInput(context, 0, &values, status.status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status.status);

  const int dims = TF_NumDims(values);
  int64_t shape[8] = {};
  for (int i = 0; i < dims && i < 8; ++i) shape[i] = TF_Dim(values, i);
  TF_Tensor* kept = TF_AllocateOutput(context, 0, TF_FLOAT, shape, dims, TF_TensorByteSize(values), status.status);
  SP_Stream stream = TF_GetStream(context, status.status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status.status);

  const auto count = static_cast<NSUInteger>(TF_TensorElementCount(values));
  const auto row = static_cast<uint32_t>(dims > 0 ? shape[dims - 1] : 1);
  if (count > 0) {
    dispatch_sync([stream->stream queue], ^{
      @autoreleasepool {
        id<MTLCommandBuffer> commands = [stream->stream currentCommandBuffer];
        id<MTLComputePipelineState> pipeline = Pipeline([commands device]);
        id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
        [encoder setComputePipelineState:pipeline];
        [encoder setBuffer:(__bridge id<MTLBuffer>)TF_TensorData(values) offset:0 atIndex:0];
        [encoder setBuffer:(__bridge id<MTLBuffer>)TF_TensorData(kept) offset:0 atIndex:1];
        [encoder setBytes:&row length:sizeof row atIndex:2];
        const NSUInteger width = MIN(pipeline.maxTotalThreadsPerThreadgroup, count);
        [encoder dispatchThreads:MTLSizeMake(count, 1, 1) threadsPerThreadgroup:MTLSizeMake(width, 1, 1)];
        [encoder endEncoding];
        [stream->stream commit];
      }
    });
  }
  TF_DeleteTensor(values);
  TF_DeleteTensor(kept);
}

__attribute__((constructor)) void Register() {
  Status status;
  TF_RegisterKernelBuilder("ZeroOut", TF_NewKernelBuilder("ZeroOut", "GPU", nullptr, &Compute, nullptr), status.status);
}

}  // namespace
