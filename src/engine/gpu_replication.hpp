// A rank's part in the GPU replication, for one incarnation of the job: what it captures goes to the other members of
// its group, and theirs arrives here (docs/gpu.md). Speaks with the others through the receive buffer's page, which the
// agent carries on, and decides with Agreement which steps are issued. No thread of its own: each call goes on as far
// as that is possible now, and none but meet() and the end waits.
//
// What goes wrong, here or with another member, ends it for this incarnation, and that is told once: all goes from host
// to host then. Any thread, but for meet() and end(), which are the training thread's.
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

#include "arena/receive_buffer.hpp"
#include "device/device.hpp"
#include "protocol/checkpoint_id.hpp"
#include "schedule/agreement.hpp"
#include "schedule/step_pacer.hpp"

namespace ckpt::engine {

class GpuReplication {
 public:
  struct Settings {
    device::Replicator::Settings replicator;
    std::uint32_t buffers = 4;  // steps that may be under way
    std::uint64_t grain_bytes = 64u << 10;
    std::function<schedule::Training()> training;  // steps are promised for its idle spans; none: whenever they can
  };
  // `piece_bytes`: that the own piece has at most. `ring`: has the agent look at the page. `device` outlives end().
  GpuReplication(device::Device& device, arena::ReceiveBuffer receive_buffer, std::uint64_t piece_bytes,
                 const Settings& settings, std::function<void()> ring);
  ~GpuReplication() { end("the engine was closed"); }
  GpuReplication(const GpuReplication&) = delete;
  GpuReplication& operator=(const GpuReplication&) = delete;

  // Until all members are there, one has failed, or the deadline has passed.
  void meet(Deadline deadline);
  // The agent may have changed the page, or the job's newest commit: nothing more of that is exchanged.
  void look(CheckpointId committed);
  // A step waits for training's network to be idle, of which nothing is told: to be looked at often.
  bool is_held() const { return is_held_.load(std::memory_order_relaxed); }
  // It is to end, and need not have ended when this returns: for what is known to lead nowhere.
  void give_up(const std::string& why);
  // Captured: newer than all before. `piece` stays as it is until the slot is granted again, and mapped and pinned as
  // long as anybody owns `owner` and end() was not called.
  void captured(CheckpointId checkpoint, std::span<const std::byte> piece, std::shared_ptr<const void> owner);
  // Nothing reads what was captured any more, or it is kept for good. The others are told.
  void end(const std::string& why);

  // Why it is host replication, once. Takes no lock unless there is something.
  std::optional<std::string> take_news();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Piece {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  // What the GPU writes to and reads, kept for good where it does not let go of it.
  struct Memory {
    arena::ReceiveBuffer receive_buffer;
    std::map<std::uint64_t, Piece> pieces;  // by checkpoint: the one that is exchanged, and what may be next
  };

  bool is_member(std::size_t number) const { return number != memory_->receive_buffer.member(); }
  bool everybody_is_there();
  device::Range receive_buffers() const;
  std::uint64_t chunk_bytes_useful() const;
  void open();
  void receive_states();
  void stop(const std::string& why);
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

  mutable std::mutex
      mutex_;  // for all below; a replication's callbacks take it, so nothing that waits for them holds it
  std::condition_variable changed_;
  std::shared_ptr<Memory> memory_;
  std::vector<std::optional<arena::ReplicationState>> words_;  // of all members
  std::optional<arena::ReplicationState> sent_state_;
  schedule::Agreement agreement_;
  schedule::StepPacer pacer_;
  schedule::Training training_;  // when it was looked at last
  // Of the exchange that was begun last, which goes on while it is busy.
  std::uint64_t begun_ = 0;  // checkpoint
  std::optional<schedule::ExchangePlan> plan_;
  std::vector<std::uint64_t> lengths_bytes_;
  std::uint64_t committed_ = 0;  // checkpoint
  std::uint64_t filled_steps_ = 0;
  bool busy_ = false;
  std::atomic<bool> is_held_{false};
  bool has_failed_ = false, is_stuck_ = false;
  std::string news_;
  std::atomic<bool> has_news_{false};
  std::shared_ptr<device::Replicator> replicator_;
};

}  // namespace ckpt::engine
