// CudaPacing joins a CopyPace and a CudaStagingPipeline: the pace says when the next chunk of a capture is enqueued,
// and learns when chunks were copied. Without a pace, chunks are enqueued at once.
//
// Rules as for CudaStagingPipeline.
#pragma once

#include "device/copy_pace.hpp"
#include "device/cuda_staging_pipeline.hpp"

namespace ckpt::device {

class CudaPacing {
 public:
  explicit CudaPacing(CudaStagingPipeline& pipeline) : pipeline_(pipeline) {}

  void use(CopyPace* pace) { pace_ = pace; }
  // True if the next chunk may be packed now. Call it only while chunks are left.
  bool may_pack() const;
  // True if the pace puts chunks off and the GPU has not come to the update. Training may wait for the pace meanwhile.
  bool holds_back() const;
  // From now on the pace puts nothing off. Does nothing if all chunks are packed.
  void hurry() const;
  // Tells the pace what has been copied since the last call.
  void look();
  // True if look() is still to see something.
  bool expects() const { return pace_ != nullptr && pipeline_.leaves_under_way() != 0; }

 private:
  CudaStagingPipeline& pipeline_;
  CopyPace* pace_ = nullptr;
  bool is_copying_ = false;  // the GPU copies a chunk
  unsigned layer_ = 0;       // in which it began to
};

}  // namespace ckpt::device
