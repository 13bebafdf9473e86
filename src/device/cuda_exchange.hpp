// The way of pieces from GPU to GPU: each member of a group sends its own and takes those of the others, through
// sub-buffers in device memory and from there to host memory (GEMINI, SOSP'23, section 5.2):
//
//   fill stream:   [fill 0][fill 1]...                            own chunk -> sub-buffer
//   cross stream:          [cross 0 ][cross 1 ]...                sub-buffers -> sub-buffers of others; by NCCL
//   copy stream:                     [copy out 0][copy out 1]...  sub-buffers -> host memory; by a copy engine
//
// Nothing is enqueued before it can begin at once, no step before the one before it has crossed: what waits on a stream
// may stand in front of training's own work (CUDA_DEVICE_MAX_CONNECTIONS), and training's collective that waits there,
// while the other member's chunk waits behind that one's collective, would never end. For the same reason a step that
// was allowed is issued whatever happens, and is to be allowed only once all members have said that they do.
//
// Used by one thread, the one that issues, with the context current. advance() and what it calls wait for nobody, but
// where a queue of the driver is full. Each advance() calls `fill` once at most.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "device/cuda_drain.hpp"
#include "device/cuda_handles.hpp"
#include "device/nccl_comm.hpp"
#include "schedule/exchange.hpp"

namespace ckpt::device {

class CudaExchange {
 public:
  struct Settings {
    std::uint64_t reserved_bytes = 128u << 20;  // of device memory; what plans are made with
    std::int64_t step_timeout_ms = 10'000;      // without progress of a step that was allowed
  };
  // Of a communicator, of which the members are the ranks. Throws Failure.
  CudaExchange(std::shared_ptr<NcclComm> comm, const Settings& settings);
  // Ends the communicator; what was begun and is not over is given up. May never return: it waits until NCCL and the
  // driver let go of all that the GPU works with.
  ~CudaExchange();
  CudaExchange(const CudaExchange&) = delete;
  CudaExchange& operator=(const CudaExchange&) = delete;

  // Goes on with meeting the others as far as that is possible now; true once all are there, and connected. NCCL
  // connects two members with the first group that they have in common, which allocates memory and waits for both: a
  // byte to and from everybody has that done here, and not by a step. Throws Failure.
  bool meet();

  // Enqueues on `stream` what puts `size_bytes` of the own piece from `first_byte` on to `to`. Begins at once.
  using Fill = std::function<void(std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to, CUstream stream)>;
  // A new exchange; the one before is over(), and meet() was true. `to` has for each member where its piece goes, in
  // pinned memory that stays until it is over, and null where it goes nowhere. No step is allowed yet.
  void begin(schedule::ExchangePlan plan, Fill fill, std::vector<std::byte*> to);
  // Steps below this number are issued.
  void allow(std::uint64_t steps);
  // No more steps will be allowed: it is over with those that are.
  void finish();
  // Goes on as far as that is possible now. Throws Failure where anything went wrong, or a step that was allowed gets
  // no further: after that there is only give_up().
  void advance();
  // Steps whose own chunks are in the sub-buffers: nothing on the GPU stands before these. And those whose chunks of
  // the others are in host memory.
  std::uint64_t filled() const { return filled_; }
  std::uint64_t received() const { return received_; }
  bool over() const;
  // Nothing is left to do before more is allowed.
  bool rests() const;

  // Gives up what is under way; after that there is only the end, of which NCCL is the first part. Once the streams are
  // still nothing reads the own piece or writes to `to` any more.
  CudaDrain give_up();

 private:
  struct Stage {
    CUdeviceptr data;  // its places
    Event filled, crossed, received;
  };
  Stage& stage(std::uint64_t step) { return stages_[step % stages_.size()]; }
  CUdeviceptr place(std::uint64_t step, const schedule::ExchangeTransfer& transfer);
  void greet();
  void make_stages();
  bool may_fill() const;
  void fill();
  void issue(std::span<const NcclComm::Transfer> group);
  void issue_step();
  void cross();
  bool has_crossed(const Event& end);
  void copy_out();
  void land();
  std::uint64_t progress() const { return filling_ + filled_ + issued_ + crossed_ + received_; }

  const std::uint32_t member_;
  const Settings settings_;
  std::optional<schedule::ExchangePlan> plan_;
  Fill fill_;
  std::vector<std::byte*> to_;
  std::uint64_t last_ = 0;  // steps that there are to be: of the plan, or those that were allowed before finish()
  // Steps that are past each point; filling_ >= filled_ >= issued_ >= crossed_ >= received_, and allowed_ >= issued_.
  std::uint64_t allowed_ = 0, filling_ = 0, filled_ = 0, issued_ = 0, crossed_ = 0, received_ = 0;
  bool has_greeted_ = false, met_ = false;
  bool on_stream_ = false;                  // the group that was issued last
  Deadline deadline_ = Deadline::in_ms(0);  // of the next progress

  // What the GPU works with. Goes once NCCL has ended: freeing anything waits for what that has on the GPU.
  DeviceMemory memory_;
  BackgroundStream fill_stream_, cross_stream_, copy_stream_;
  Event greeted_;
  std::vector<Stage> stages_;
  const std::shared_ptr<NcclComm> comm_;
};

}  // namespace ckpt::device
