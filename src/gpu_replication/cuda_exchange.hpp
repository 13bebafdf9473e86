// CudaExchange carries out one exchange on this rank's GPU: it sends the rank's own piece to the other members of the
// replication group, and receives theirs (GEMINI, SOSP'23, section 5.2). Bytes pass through sub-buffers in device
// memory:
//
//    fill stream:   [fill 0][fill 1]...                            own chunk -> sub-buffer; or on another stream
//    cross stream:          [cross 0 ][cross 1 ]...                sub-buffers -> sub-buffers of others; by NCCL
//    copy stream:                     [copy out 0][copy out 1]...  sub-buffers -> host memory; by a copy engine
//
// In a group with parity, the copy stream first makes a chunk of this member's parity from the chunks that have
// arrived. The copy engine copies this chunk and its digests (parity_place.hpp), and not what arrived.
//
// It enqueues only work that can begin at once, and a step only after the step before has crossed. Work that waits on a
// stream may block training's own work (CUDA_DEVICE_MAX_CONNECTIONS). Then two members might wait for each other for
// ever: on each, a chunk waits behind a collective of training, which needs the other member. A member that did not
// issue an allowed step would also block the others. So each member issues all allowed steps, whatever happens. A step
// may be allowed only after all members have promised to issue it.
//
// Only the progress thread uses it, with the context current. advance() and its callbacks wait only if a queue of the
// driver is full. Each advance() calls `fill` at most once.
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
#include "device/cuda_kernels.hpp"
#include "gpu_replication/nccl_comm.hpp"
#include "src/gpu_replication/exchange.hpp"

namespace ckpt::device {

class CudaExchange {
 public:
  struct Settings {
    std::uint64_t reserved_bytes = 128u << 20;  // device memory for the sub-buffers; no plan may need more
    std::int64_t step_timeout_ms = 10'000;      // how long an allowed step may make no progress
    bool makes_parity = false;                  // the plans are of a group with parity
  };
  // `comm`: a communicator whose ranks are the members, with the same numbers. Throws Failure.
  CudaExchange(std::shared_ptr<NcclComm> comm, const Settings& settings);
  // Ends the communicator and gives up an unfinished exchange. May never return: it waits until NCCL and the driver
  // release everything that the GPU works with.
  ~CudaExchange();
  CudaExchange(const CudaExchange&) = delete;
  CudaExchange& operator=(const CudaExchange&) = delete;

  // Connects this member to all others. Call it until it returns true, before the first step. Each call does what is
  // possible now and does not wait. At the first transfer between two members, NCCL connects them: it allocates memory
  // and waits for both. At the first transfer of more than a few bytes, it also registers the sub-buffers with the
  // network adapter. So the members exchange some bytes here. Then no step has to wait for this. Throws Failure.
  bool meet();

  // A chunk of this member's piece: `size_bytes` from `first_byte` on, to be copied to `to` in device memory.
  struct Chunk {
    std::uint64_t first_byte, size_bytes;
    CUdeviceptr to;
    const Event& filled;
  };
  // begun: the copy is enqueued. later: the bytes are not there yet; advance() asks again. never: they will never be
  // there, so this step and all later ones are not filled.
  enum class Filling { begun, later, never };
  // Enqueues the copy of a chunk, on `stream` or on another one, and records `filled` after it. The copy must be able
  // to begin at once. Throws Failure.
  using Fill = std::function<Filling(const Chunk& chunk, CUstream stream)>;
  // Begins an exchange. The previous exchange must be over(), and meet() must have returned true. The piece of member i
  // goes to `to[i]`: pinned memory that the caller keeps until the exchange is over. If `to[i]` is null, the piece is
  // dropped. With parity, this member's parity goes to `to` of this member, as ParityPlace says. No step is issued
  // before the caller allows it with allow().
  void begin(schedule::ExchangePlan plan, Fill fill, std::vector<std::byte*> to);
  // Allows the first `steps` steps to be issued. Earlier permissions stay.
  void allow(std::uint64_t steps);
  // Says that no more steps will be allowed. The exchange is over once the allowed steps have ended.
  void finish();
  // Does what is possible now, without waiting. Throws Failure if anything went wrong, or if an allowed step has made
  // no progress for `step_timeout_ms`. After that only give_up() may be called.
  void advance();
  // filled(): number of steps for which this member's chunk is in its sub-buffer, so that nothing on the GPU delays
  // these steps. received(): number of steps whose chunks from the other members are in host memory.
  std::uint64_t filled() const { return filled_; }
  std::uint64_t received() const { return received_; }
  bool over() const;
  // True if advance() has nothing to do until allow() allows more steps, or until the bytes of the next chunk are
  // there.
  bool rests() const;
  // True if the bytes of the next chunk were not there yet. Nobody announces that they are, so call advance() now and
  // then.
  bool awaits_bytes() const { return filling_result_ == Filling::later && may_fill(); }

  // Gives up the exchange under way. After that this object can only be destroyed. Once the returned streams are
  // drained, nothing on the GPU reads this member's piece or writes to `to` any more.
  CudaDrain give_up();

 private:
  // The sub-buffers of one step.
  struct Stage {
    CUdeviceptr data;           // one place after the other (ExchangeTransfer::place), then digests
    std::vector<Event> filled;  // one for each of sent_chunks()
    Event crossed, received;
  };
  const Stage& stage(std::uint64_t step) const { return stages_[step % stages_.size()]; }
  CUdeviceptr place(std::uint64_t step, std::uint32_t number) const {
    return stage(step).data + number * plan_->chunk_bytes();
  }
  std::vector<schedule::ExchangeTransfer> sent_chunks(std::uint64_t step) const;
  bool is_filled(std::uint64_t step) const;
  void greet();
  void make_stages();
  bool may_fill() const;
  void fill();
  void issue(std::span<const NcclComm::Transfer> group);
  void issue_step();
  void cross();
  bool has_crossed(const Event& end);
  void copy_out();
  void encode(const schedule::EncodingStep& made);
  void land();
  std::uint64_t progress() const { return filling_ + filled_ + issued_ + crossed_ + received_; }

  const std::uint32_t member_;
  const Settings settings_;
  std::optional<schedule::ExchangePlan> plan_;
  Fill fill_;
  std::vector<std::byte*> to_;
  std::uint64_t last_ = 0;  // how many steps to issue: those of the plan; after finish(), those allowed before
  // How many steps have passed each point. filling_ >= filled_ >= issued_ >= crossed_ >= received_, and allowed_ >=
  // issued_.
  std::uint64_t allowed_ = 0, filling_ = 0, filled_ = 0, issued_ = 0, crossed_ = 0, received_ = 0;
  std::size_t filling_chunk_ = 0;            // the next of sent_chunks() of step filling_ to be filled
  Filling filling_result_ = Filling::begun;  // what the last call of fill_ returned
  bool has_greeted_ = false, met_ = false;
  bool on_stream_ = false;                  // NCCL has enqueued the group of transfers issued last
  Deadline deadline_ = Deadline::in_ms(0);  // for the next progress

  // What the GPU works with. It is destroyed after comm_ has ended NCCL, because freeing waits for what NCCL has on the
  // GPU.
  DeviceMemory memory_;
  std::optional<CudaKernels> kernels_;  // only with parity
  BackgroundStream fill_stream_, cross_stream_, copy_stream_;
  Event greeted_;
  std::vector<Stage> stages_;
  const std::shared_ptr<NcclComm> comm_;
};

}  // namespace ckpt::device
