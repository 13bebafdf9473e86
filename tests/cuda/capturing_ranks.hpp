// Ranks of one replication group that capture tensors and replicate them from GPU to GPU, all in this process, on the
// test doubles of the driver and of NCCL. For tests and for bench_gpu_counts. Functions throw Failure.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/cuda_device.hpp"
#include "gpu_replication/gpu_replication.hpp"
#include "kernels/digest.hpp"

namespace ckpt::testing_support {

// A slot for one piece and its digests.
class CapturedSlot {
 public:
  explicit CapturedSlot(const device::Plan& plan)
      : length_bytes_(plan.length_bytes()), digests_at_((plan.leaves() + 1) * kernels::leaf_size_bytes) {
    data_ = ::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw Failure(CKPT_ERR_NO_SPACE, "there is no host memory");
  }
  ~CapturedSlot() { ::munmap(data_, size_bytes()); }
  CapturedSlot(const CapturedSlot&) = delete;
  CapturedSlot& operator=(const CapturedSlot&) = delete;

  device::Range range() const { return {static_cast<std::byte*>(data_), size_bytes()}; }
  device::Packed packed() const { return {range().data, reinterpret_cast<std::uint64_t*>(range().data + digests_at_)}; }
  std::span<const std::byte> piece() const { return {range().data, length_bytes_}; }
  // Whether these are the bytes that the slot's digests are of.
  bool matches(std::span<const std::byte> bytes) const {
    std::vector<std::uint64_t> digests(kernels::leaf_count(length_bytes_));
    kernels::digest_leaves(bytes.data(), length_bytes_, digests.data());
    return std::equal(digests.begin(), digests.end(), packed().digests);
  }

 private:
  std::size_t size_bytes() const {
    const std::size_t digests_bytes = digests_at_ / kernels::leaf_size_bytes * sizeof(std::uint64_t);
    return digests_at_ + (digests_bytes + arena::page_bytes - 1) / arena::page_bytes * arena::page_bytes;
  }
  const std::size_t length_bytes_, digests_at_;
  void* data_;
};

class CapturingRank {
 public:
  using Settings = client::GpuReplication::Settings;
  CapturingRank(const std::string& directory, std::uint32_t member, std::uint32_t members, const device::Plan& plan,
                std::uint64_t staging_bytes, const Settings& settings)
      : plan_(plan),
        device_(0, staging_bytes),
        receive_buffer_(arena::ReceiveBuffer::create(directory, member, {1, member, members})) {
    for (auto& slot : slots_) slot = std::make_shared<CapturedSlot>(plan);
    device_.attach({slots_[0]->range(), slots_[1]->range()}, nullptr);
    if (!device_.wait_until_attached(Deadline::in_ms(300'000)))
      throw Failure(CKPT_ERR_TIMEOUT, "the slots were not pinned");
    replication_ = std::make_unique<client::GpuReplication>(
        device_, arena::ReceiveBuffer::attach(UniqueFd(::fcntl(receive_buffer_.fd(), F_DUPFD_CLOEXEC, 0))),
        plan.length_bytes(), settings, [] {});
  }
  ~CapturingRank() { device_.cancel(); }
  CapturingRank(const CapturingRank&) = delete;
  CapturingRank& operator=(const CapturingRank&) = delete;

  client::GpuReplication& replication() const { return *replication_; }
  arena::ReceiveBuffer& receive_buffer() { return receive_buffer_; }
  const CapturedSlot& slot(std::int64_t iteration) const { return *slots_[iteration % 2]; }

  // What Engine::snapshot(), before_update() and a discarded snapshot do. `is_told`: GPU replication hears of the
  // capture when it begins, not only when it is complete.
  void snapshot(std::int64_t iteration, device::Stream stream, bool is_told = true) {
    checkpoint_ = CheckpointId(1, iteration);
    is_captured_ = false;
    const auto& slot = slots_[iteration % 2];
    const device::Device::Copy copy{&plan_, slot->packed()};
    device_.start({&copy, 1}, {&nothing_, {}}, stream);
    if (is_told) replication_->capturing(checkpoint_, slot->piece(), device_.capture_number(), slot);
  }
  void before_update(device::Stream stream) {
    const auto done = [this, slot = slots_[checkpoint_.iteration() % 2]](bool whole) {
      if (whole) replication_->captured(checkpoint_, slot->piece(), slot);
      is_captured_ = whole;
    };
    if (!device_.release({&stream, 1}, 300'000, done))
      throw Failure(CKPT_ERR_SYSTEM, "a capture failed: " + device_.failure());
  }
  void discard() {
    replication_->discarded(checkpoint_);
    device_.cancel();
  }
  bool is_captured() const { return is_captured_; }
  // How many bytes of that rank's piece have arrived here, and the bytes.
  std::uint64_t received(std::size_t member, std::int64_t iteration) const {
    return receive_buffer_.received(member, CheckpointId(1, iteration));
  }
  std::span<const std::byte> bytes_of(std::size_t member) const { return receive_buffer_.bytes(member); }

 private:
  const device::Plan& plan_;
  const device::Plan nothing_{{}};
  device::CudaDevice device_;
  arena::ReceiveBuffer receive_buffer_;
  std::array<std::shared_ptr<CapturedSlot>, 2> slots_;  // of even and of odd iterations
  CheckpointId checkpoint_;
  std::atomic<bool> is_captured_{false};
  std::unique_ptr<client::GpuReplication> replication_;
};

// The group. Its thread does what agents do: it passes the members' states on.
class CapturingRanks {
 public:
  CapturingRanks(const std::string& directory, const std::vector<const device::Plan*>& plans,
                 std::uint64_t staging_bytes, const CapturingRank::Settings& settings) {
    const auto members = static_cast<std::uint32_t>(plans.size());
    for (std::uint32_t member = 0; member < members; ++member)
      ranks_.push_back(
          std::make_unique<CapturingRank>(directory, member, members, *plans[member], staging_bytes, settings));
    agents_ = std::thread([this] {
      while (!is_over_) {
        carry();
        ++rounds_;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    for_all([](CapturingRank& rank) { rank.replication().meet(Deadline::in_ms(50'000)); });
  }
  ~CapturingRanks() {
    end();
    is_over_ = true;
    agents_.join();
  }
  CapturingRanks(const CapturingRanks&) = delete;
  CapturingRanks& operator=(const CapturingRanks&) = delete;

  std::size_t size() const { return ranks_.size(); }
  // How often the agents have passed everything on.
  std::uint64_t rounds() const { return rounds_; }
  CapturingRank& operator[](std::size_t member) { return *ranks_[member]; }
  // Ends GPU replication of all, at the same time: on one GPU, the memory of one is freed only after the others' end.
  void end() {
    for_all([](CapturingRank& rank) { rank.replication().end("it is over"); });
  }
  bool all_captured() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->is_captured(); });
  }
  bool all_received(std::int64_t iteration) {
    for (std::size_t to = 0; to < size(); ++to)
      for (std::size_t from = 0; from < size(); ++from)
        if (to != from && ranks_[to]->received(from, iteration) != ranks_[from]->slot(iteration).piece().size())
          return false;
    return true;
  }
  // Whether each has the bytes that the others captured.
  bool all_match(std::int64_t iteration) {
    for (std::size_t to = 0; to < size(); ++to)
      for (std::size_t from = 0; from < size(); ++from)
        if (to != from && !ranks_[from]->slot(iteration).matches(ranks_[to]->bytes_of(from))) return false;
    return true;
  }
  // What agents say when they have copied everything out of the receive buffers.
  void take(std::int64_t iteration) {
    for (std::size_t to = 0; to < size(); ++to)
      for (std::size_t from = 0; from < size(); ++from)
        if (to != from) ranks_[to]->receive_buffer().page().taken(from, CheckpointId(1, iteration));
  }

 private:
  template <class Each>
  void for_all(Each each) {
    std::vector<std::thread> threads;
    for (const auto& rank : ranks_) threads.emplace_back([&] { each(*rank); });
    for (std::thread& thread : threads) thread.join();
  }
  void carry() {
    std::vector<std::uint64_t> capacities_bytes;
    for (std::size_t member = 0; member < size(); ++member) {
      const auto state = ranks_[member]->receive_buffer().page().own_state();
      if (!state) return;
      capacities_bytes.push_back(state->piece_bytes);
      for (const auto& other : ranks_)
        if (other != ranks_[member]) other->receive_buffer().page().put_state(member, *state);
    }
    if (!std::exchange(are_places_made_, true))
      for (std::size_t member = 0; member < size(); ++member) {
        auto of_others = capacities_bytes;
        of_others[member] = 0;
        ranks_[member]->receive_buffer().make_places(of_others);
      }
    for (const auto& rank : ranks_) rank->replication().look(CheckpointId());
  }

  std::vector<std::unique_ptr<CapturingRank>> ranks_;
  bool are_places_made_ = false;
  std::atomic<bool> is_over_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::thread agents_;
};

}  // namespace ckpt::testing_support
