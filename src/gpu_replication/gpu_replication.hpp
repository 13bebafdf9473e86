// GpuReplication is one rank's part in GPU replication, for one incarnation (docs/gpu.md). It sends the pieces that the
// rank captures to the other members of its replication group, and receives theirs. In a group with parity, it sends
// and receives segments of them, and makes its node's parity from what it receives.
//
// Each member writes its state to the page of its receive buffer, and the agents pass the state on to the other
// members. Agreement decides which steps are issued. This object has no thread of its own: each call does what is
// possible now. Only meet() and end() wait, and only the training thread may call them. Any thread may call the other
// functions.
//
// The first failure, here or at another member, ends GPU replication for this incarnation. take_news() reports it once.
// From then on pieces go from host to host.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_id.hpp"
#include "device/device.hpp"
#include "gpu_replication/receive_buffer.hpp"
#include "schedule/step_pacer.hpp"
#include "src/gpu_replication/agreement.hpp"

namespace ckpt::client {

class GpuReplication {
 public:
  struct Settings {
    device::Replicator::Settings replicator;
    std::uint32_t buffers = 4;  // steps that may be under way at once
    std::uint64_t grain_bytes = 64u << 10;
    // Returns what is known of training's communication, so that steps (exchange.hpp) run while training leaves the
    // network idle. Null: steps run at any time.
    std::function<schedule::Training()> training;
  };
  // `piece_bytes`: largest size that this rank's piece will have. `ring` rings the agent's doorbell, so that the agent
  // reads the page. `device` must live until end() has returned.
  GpuReplication(device::Device& device, arena::ReceiveBuffer receive_buffer, std::uint64_t piece_bytes,
                 const Settings& settings, std::function<void()> ring);
  ~GpuReplication() { end("the engine was closed"); }
  GpuReplication(const GpuReplication&) = delete;
  GpuReplication& operator=(const GpuReplication&) = delete;

  // Waits until all members are connected over NCCL, one has failed, or the deadline has passed. After a failure or the
  // deadline, GPU replication has ended.
  void meet(Deadline deadline);
  // Call this when the agent may have changed the page, or when the job has committed. `committed`: the newest commit.
  // Pieces of this checkpoint and older ones are not exchanged any more.
  void look(CheckpointId committed);
  // True while a step waits until training leaves the network idle. Nobody announces that moment, so call look() often.
  bool is_held() const { return is_held_.load(std::memory_order_relaxed); }
  // Makes GPU replication end, and does not wait for the end. Use it when an exchange cannot succeed any more.
  void give_up(const std::string& why);
  // Call this when the rank has begun to capture a newer checkpoint. `capture` is the number of the capture
  // (Device::capture_number()), and `piece` the memory that it goes to. From now on the piece may be exchanged, as far
  // as its bytes are on the GPU. The memory must stay mapped and pinned until `owner` is destroyed or end() has
  // returned.
  void capturing(CheckpointId checkpoint, std::span<const std::byte> piece, std::uint64_t capture,
                 std::shared_ptr<const void> owner);
  // Call this when the capture is complete. `piece` and `owner` are as in capturing(), which need not have been called.
  // `piece` must not change until the agent grants its slot for another snapshot.
  void captured(CheckpointId checkpoint, std::span<const std::byte> piece, std::shared_ptr<const void> owner);
  // Call this when the capture was given up. Chunks that other members have been promised are still sent.
  void discarded(CheckpointId checkpoint);
  // Ends GPU replication and tells the other members why. After that the GPU reads no captured piece any more. If the
  // GPU cannot be stopped, the memory of these pieces is never freed.
  void end(const std::string& why);

  // Returns why pieces go from host to host now. Returns nothing if they go from GPU to GPU, or if the reason was
  // returned before. Takes no lock if it returns nothing.
  std::optional<std::string> take_news();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using PieceState = device::Replicator::PieceState;
  struct Piece {
    std::span<const std::byte> bytes;
    std::uint64_t capture = 0;
    std::shared_ptr<std::atomic<PieceState>> state;
    std::shared_ptr<const void> owner;
  };
  // The memory that the GPU reads and writes. If the GPU may still use it at the end, it is never freed.
  struct Memory {
    arena::ReceiveBuffer receive_buffer;
    std::map<std::uint64_t, Piece> pieces;  // by checkpoint: the piece being exchanged, and the next if there is one
  };

  bool is_member(std::size_t number) const { return number != memory_->receive_buffer.member(); }
  bool everybody_is_there();
  device::Range receive_buffers() const;
  std::uint64_t chunk_bytes_useful() const;
  void open();
  void receive_states();
  void stop(const std::string& why);
  void add(CheckpointId checkpoint, PieceState state, Piece piece);
  void go_on();
  void advance();
  void offer();
  bool is_taken(std::uint64_t checkpoint) const;
  void promise();
  void begin(const schedule::Agreement::Terms& terms);
  void progress(std::uint64_t checkpoint, std::uint64_t filled_steps, std::uint64_t received_steps);
  void done(std::uint64_t checkpoint);
  void failed(const std::string& why, bool is_stuck);
  void fail(const std::string& why);
  void send_state();

  device::Device& device_;
  const Settings settings_;
  const std::function<void()> ring_;

  // Guards all below. The replicator's callbacks lock it. So nobody may hold it while waiting for the replicator.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Memory> memory_;
  std::vector<std::optional<arena::ReplicationState>> words_;
  std::optional<arena::ReplicationState> sent_state_;
  schedule::Agreement agreement_;
  const schedule::StepMemory step_memory_;
  schedule::StepPacer pacer_;
  schedule::Training training_;  // as of the last look
  // The exchange that began last. It goes on while busy_ is set.
  std::uint64_t begun_ = 0;  // checkpoint
  std::optional<schedule::ExchangePlan> plan_;
  std::uint64_t committed_ = 0;  // checkpoint
  std::uint64_t filled_steps_ = 0;
  bool busy_ = false;
  std::atomic<bool> is_held_{false};
  bool has_failed_ = false, is_stuck_ = false;
  std::string news_;
  std::atomic<bool> has_news_{false};
  std::shared_ptr<device::Replicator> replicator_;
};

}  // namespace ckpt::client
