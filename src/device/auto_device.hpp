// AutoDevice is the device of an engine whose tensors may be in host or GPU memory. It works as HostDevice until the
// first tensor in GPU memory is registered, and then as CudaDevice. So a process without such a tensor never touches
// the CUDA driver.
#pragma once

#include <atomic>

#include "device/cuda_device.hpp"
#include "device/host_device.hpp"

namespace ckpt::device {

class AutoDevice : public Device {
 public:
  // Uses up to `staging_bytes` of the GPU's memory.
  AutoDevice(unsigned copy_threads, std::uint64_t staging_bytes) : staging_bytes_(staging_bytes), host_(copy_threads) {}

  void reach(ckpt_memory memory, const void* data) override;
  void prepare(const std::vector<Range>& ranges, const Owner& owner) override { used_.load()->prepare(ranges, owner); }
  void attach(const std::vector<Range>& ranges, const Owner& owner) override;
  void attach_also(const Range& range, const Owner& owner) override;
  void check_streams(const char* call, std::span<const Stream> streams) const override {
    used_.load()->check_streams(call, streams);
  }
  bool wait_until_attached(Deadline deadline) override { return used_.load()->wait_until_attached(deadline); }
  std::string attaching() const override { return used_.load()->attaching(); }
  std::optional<std::string> take_news() override { return used_.load()->take_news(); }
  bool broken() const override { return used_.load()->broken(); }
  bool wants_ranges() const override { return used_.load()->wants_ranges(); }
  std::string failure() const override { return used_.load()->failure(); }
  std::uint64_t staging_bytes() const override { return used_.load()->staging_bytes(); }
  std::string shortage() const override { return used_.load()->shortage(); }
  void start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) override {
    used_.load()->start(overlapped, synchronous, stream);
  }
  void pace(CopyPace* pace) override;
  bool can_start_late() const override { return used_.load()->can_start_late(); }
  bool wait_for_synchronous(std::int64_t timeout_ms) override { return used_.load()->wait_for_synchronous(timeout_ms); }
  bool captures_late() const override { return used_.load()->captures_late(); }
  void reserve_late(std::span<const Copy> pieces) override { used_.load()->reserve_late(pieces); }
  void start_late(std::span<const Copy> overlapped) override { used_.load()->start_late(overlapped); }
  void note_lead(Stream stream) override { used_.load()->note_lead(stream); }
  bool is_ahead() const override { return used_.load()->is_ahead(); }
  bool release(std::span<const Stream> streams, std::int64_t timeout_ms, Done done) override {
    return used_.load()->release(streams, timeout_ms, std::move(done));
  }
  void cancel() override { used_.load()->cancel(); }
  std::optional<std::size_t> load(const Plan& plan, ConstPacked from, Stream stream) override {
    return used_.load()->load(plan, from, stream);
  }
  bool loads_leaves() const override { return used_.load()->loads_leaves(); }
  std::optional<std::size_t> load_leaves(const Plan& plan, ConstPacked from, std::size_t first_leaf,
                                         std::size_t last_leaf) override {
    return used_.load()->load_leaves(plan, from, first_leaf, last_leaf);
  }
  std::optional<std::size_t> verify(const Plan& plan, const std::uint64_t* digests, Stream stream) override {
    return used_.load()->verify(plan, digests, stream);
  }
  std::unique_ptr<StreamTimestamps> timestamps(Range words, std::shared_ptr<void> owner,
                                               StreamTimestamps::Reached reached) override {
    return used_.load()->timestamps(words, std::move(owner), std::move(reached));
  }
  std::uint64_t capture_number() const override { return used_.load()->capture_number(); }
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override { return used_.load()->allocate(size_bytes); }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes, Stream stream) override {
    used_.load()->copy_within(to, from, size_bytes, stream);
  }
  void check_replication(const char* const* environment) const override {
    used_.load()->check_replication(environment);
  }
  Replicator::Id new_communicator_id() override { return used_.load()->new_communicator_id(); }
  std::unique_ptr<Replicator> replicator(const Replicator::Group& group, const Replicator::Settings& settings,
                                         Range receive_buffers, Replicator::Failed failed) override {
    return used_.load()->replicator(group, settings, receive_buffers, std::move(failed));
  }

 private:
  const std::uint64_t staging_bytes_;
  std::vector<Range> ranges_;
  Owner owner_;  // keeps ranges_ mapped
  CopyPace* pace_ = nullptr;
  HostDevice host_;
  std::unique_ptr<CudaDevice> cuda_;
  std::atomic<Device*> used_ = &host_;  // read by prepare() on another thread
};

}  // namespace ckpt::device
