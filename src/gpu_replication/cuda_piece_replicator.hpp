// CudaPieceReplicator is the replicator for captured pieces. It takes a chunk from the capture while the GPU has it.
// Otherwise it takes the chunk from the slot into which the piece was captured. So training may change the tensors
// meanwhile. It pins the receive buffers, so that the GPU can write there.
#pragma once

#include <memory>

#include "device/cuda_captured.hpp"
#include "device/device.hpp"
#include "gpu_replication/cuda_replicator.hpp"
#include "gpu_replication/replicator.hpp"

namespace ckpt::device {

class CudaPieceReplicator : public Replicator {
 public:
  // Throws Failure if there is no usable NCCL, or if an environment variable overrides a setting of our communicator.
  static void check(const char* const* environment);
  // Makes the id of a new communicator. Throws Failure.
  static Id new_id();

  // `ordinal`: the GPU's number for CUDA. `captured`: the captures of the device; null: all bytes come from slots.
  // `receive_buffers` must stay mapped while `failed` exists. This object's
  // destructor destroys `failed`. If NCCL or the GPU does not end in time, a thread destroys `failed` later. Throws
  // Failure.
  CudaPieceReplicator(int ordinal, const Group& group, const Settings& settings, Range receive_buffers,
                      std::shared_ptr<CudaCaptured> captured, Failed failed);
  bool wait_to_meet(Deadline deadline) override { return replicator_->wait_to_meet(deadline); }
  bool begin(Exchange exchange) override;
  void allow(std::uint64_t number, std::uint64_t steps) override { replicator_->allow(number, steps); }
  void finish(std::uint64_t number) override { replicator_->finish(number); }
  void give_up(const std::string& why) override { replicator_->give_up(why); }

 private:
  const std::shared_ptr<CudaCaptured> captured_;
  std::unique_ptr<CudaReplicator> replicator_;
};

}  // namespace ckpt::device
