// CudaDevice captures and restores tensors in the memory of one GPU. Tensors in host memory may be among them.
//
// One thread of the device feeds the staging pipeline and notices when everything has arrived. Another one pins memory.
// So no thread of the caller waits for the GPU, except in load(), verify() and wait_for_synchronous(), and in release()
// if very much is left to be enqueued, or if a pace puts chunks off. The first thread works only between start() and
// the end of a copy.
//
// The destructor gives up a running copy. The destination must still be mapped then.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "device/cuda_captured.hpp"
#include "device/cuda_handles.hpp"
#include "device/cuda_pacing.hpp"
#include "device/cuda_pinning.hpp"
#include "device/cuda_staging_pipeline.hpp"
#include "device/device.hpp"
#include "gpu_replication/cuda_piece_replicator.hpp"

namespace ckpt::device {

struct CudaLimits {
  std::int64_t drain_timeout_ms = 10'000;  // how long cancel() waits for the GPU to end what is enqueued of the copy
  std::int64_t load_timeout_ms = 600'000;  // far longer than any copy to a GPU
  std::uint64_t chunk_max_bytes = CudaRing::default_chunk_max_bytes;
  CudaPinning::Retries retries = {};
};

class CudaDevice : public Device {
 public:
  // Returns the number of the GPU in whose memory `data` is. Throws Failure (CKPT_ERR_INVALID) for other memory.
  static int ordinal_of(const void* data);

  // Uses up to `staging_bytes` of the GPU's memory, and a little more for what is captured synchronously. Until a copy
  // that cancel() gave up has ended, the device is broken(). Throws Failure.
  CudaDevice(int ordinal, std::uint64_t staging_bytes, const CudaLimits& limits = {});
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void reach(ckpt_memory memory, const void* data) override;
  // prepare(), attach() and attach_also() pin the ranges.
  void prepare(const std::vector<Range>& ranges, const Owner& owner) override { pinning_.prepare(ranges, owner); }
  void attach(const std::vector<Range>& ranges, const Owner& owner) override { pinning_.use(ranges, owner); }
  void attach_also(const Range& range, const Owner& owner) override { pinning_.use_also(range, owner); }
  bool wait_until_attached(Deadline deadline) override { return pinning_.wait(deadline); }
  std::string attaching() const override { return pinning_.progress(); }
  std::optional<std::string> take_news() override { return pinning_.take_news(); }
  void check_streams(const char* call, std::span<const Stream> streams) const override;
  bool broken() const override;
  bool wants_ranges() const override { return !pinning_.failure().empty(); }
  std::string failure() const override;
  std::uint64_t staging_bytes() const override { return staging_pipeline_->staging_bytes(); }
  std::string shortage() const override;
  void start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) override;
  void pace(CopyPace* pace) override;
  bool wait_for_synchronous(std::int64_t timeout_ms) override;
  bool captures_late() const override { return true; }
  void reserve_late(std::span<const Copy> pieces) override;
  void start_late(std::span<const Copy> overlapped) override;
  void note_lead(Stream stream) override;
  bool is_ahead() const override;
  bool release(std::span<const Stream> streams, std::int64_t timeout_ms, Done done) override;
  void cancel() override;
  std::optional<std::size_t> load(const Plan& plan, ConstPacked from, Stream stream) override;
  std::optional<std::size_t> verify(const Plan& plan, const std::uint64_t* digests, Stream stream) override;
  std::unique_ptr<StreamTimestamps> timestamps(Range words, std::shared_ptr<void> owner,
                                               StreamTimestamps::Reached reached) override;
  std::uint64_t capture_number() const override;
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override;
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes, Stream stream) override;
  void check_replication(const char* const* environment) const override { CudaPieceReplicator::check(environment); }
  Replicator::Id new_communicator_id() override { return CudaPieceReplicator::new_id(); }
  std::unique_ptr<Replicator> replicator(const Replicator::Group& group, const Replicator::Settings& settings,
                                         Range receive_buffers, Replicator::Failed failed) override {
    return std::make_unique<CudaPieceReplicator>(ordinal_, group, settings, receive_buffers, captured_,
                                                 std::move(failed));
  }

 private:
  // The state of the current copy. `failed`: enqueued work may still run. `ending`: `done` is being called.
  enum class Phase { idle, copying, released, failed, ending };
  using Lock = std::unique_lock<std::mutex>;

  template <class Enqueue>
  void begin(Enqueue enqueue);
  struct Reading;
  template <class Enqueue>
  std::optional<std::size_t> read(std::unique_ptr<Reading> reading, const std::uint64_t* expected, Deadline deadline,
                                  Enqueue enqueue);
  void run();
  void step(Lock& lock);
  void feed(bool only_into_free);
  void follow_pace(Lock& lock, CUstream update, Deadline deadline);
  bool feed_until_packed(Lock& lock, Deadline deadline);
  bool takes_too_long();
  void look_for_late_copy();
  void finish(Lock& lock, bool whole);
  void fail(const std::string& sentence);
  void drain();
  void be_late(std::int64_t timeout_ms);
  void die(const Failure& failure);
  bool may_still_write() const { return dead_ || is_late_; }
  bool wait_for_arrival(Deadline deadline) const;

  const int ordinal_;
  const std::uint64_t wanted_staging_bytes_;
  const CudaLimits limits_;
  const Context context_;
  CudaPinning pinning_;
  std::unique_ptr<CudaStagingPipeline> staging_pipeline_;
  std::shared_ptr<CudaCaptured> captured_;

  std::optional<Event> lead_;  // what note_lead() recorded; none if it recorded nothing

  mutable std::mutex mutex_;  // for the staging pipeline and all below
  std::condition_variable changed_;
  std::optional<CudaPacing> pacing_;  // of the staging pipeline
  Phase phase_ = Phase::idle;
  Done done_;
  std::int64_t timeout_ms_ = 0;
  std::optional<Deadline> deadline_;  // of the copy; set when the GPU gets to it
  bool has_ended_ = false;            // all of a released copy is enqueued
  bool dead_ = false;                 // the context died
  bool is_late_ = false;              // the GPU has not ended a copy that was given up
  std::string failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
