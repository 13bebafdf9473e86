// ReplicationManager is the agent's part of GPU replication (docs/gpu.md). The trainers send and receive the pieces.
// The manager makes a receive buffer for each rank that has a replication group. It passes state between the trainers
// of a group, through the agents of the other members. It tells fetches where a piece arrives, and trainers which
// places are free again.
//
// If GPU replication fails, nothing is lost: pieces that do not arrive are fetched. Only the agent's core thread uses
// the manager. A receive buffer's memory is made on a thread of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "core/events.hpp"
#include "core/fields.hpp"
#include "gpu_replication/receive_backoff.hpp"
#include "gpu_replication/receive_buffer.hpp"

namespace ckpt::agent {

class ReplicationManager {
 public:
  // What the manager uses. All of it outlives the manager.
  struct Dependencies {
    const std::string& directory;  // of the arena
    Segments& segments;
    CoreQueue& queue;
    std::function<void(core::NodeId to, const core::ReplicationUpdate& update)> send;
    std::function<void(core::Rank)> ring;                     // wakes the rank's trainer: there is something to read
    std::function<void()> look;                               // bytes may have arrived, or no more will
    std::function<void(const std::string& sentence)> notice;  // for people
    // Memory that slots still to be made will take, for pieces of this size: the ranks' own slots and those for peers.
    std::function<std::uint64_t(std::uint64_t piece_bytes)> bytes_to_come;
  };
  explicit ReplicationManager(Dependencies dependencies) : deps_(std::move(dependencies)) {}

  void notify(const core::NotifyReplicationGroup& notify);
  // The trainer is gone, and its receive buffer with it.
  void gone(core::Rank rank);
  // The trainer cannot take part, for this reason.
  void refuse(core::Rank rank, const std::string& why);
  // The trainer may have written to its page.
  void look(core::Rank rank);
  void received(core::NodeId from, const core::ReplicationUpdate& update);

  // Where a piece from that node arrives. Nothing if the rank's replication does not run: then there is nothing to wait
  // for.
  struct Place {
    core::Rank rank = 0;
    std::size_t number = 0;
    std::shared_ptr<const arena::ReceiveBuffer> receive_buffer;
  };
  std::optional<Place> place_of(const core::PieceInfo& piece, core::NodeId source);
  // The same for a fetch that begins. Also nothing if recent waits were in vain (receive_backoff.hpp).
  std::optional<Place> place_to_wait_for(const core::PieceInfo& piece, core::NodeId source);
  // The course of a fetch from that node. fetching(): it begins, and no older piece is needed from now on. brought():
  // it has brought the piece, and `gpu_received_bytes` of it had come by GPU replication; nothing if it did not wait
  // for that. fetched(): it has ended, in whatever way.
  void fetching(const core::PieceInfo& piece, core::NodeId source);
  void brought(const core::PieceInfo& piece, core::NodeId source, std::optional<std::uint64_t> gpu_received_bytes);
  void fetched(const core::PieceInfo& piece, core::NodeId source);
  // No piece up to this checkpoint will be fetched any more, unless its fetch is under way.
  void committed(CheckpointId checkpoint);

  // Repeats updates that may have been lost. To be called at tick_wanted_at().
  void tick();
  std::optional<Deadline> tick_wanted_at() const { return repeat_at_; }

  // The descriptor of the receive buffer, for its trainer. Nothing if the rank has no GPU replication.
  std::optional<int> receive_buffer_fd(core::Rank rank) const;
  struct Status {
    bool is_device = false;
    bool has_begun = false;  // false while members may still be joining
    std::uint64_t gpu_received_bytes = 0;
    std::string trouble;  // why the host replicates instead; "" if GPU replication works or was not wanted
  };
  Status status(core::Rank rank) const;

 private:
  struct Replication {
    std::uint64_t incarnation = 0;
    core::ReplicationGroup group;
    std::shared_ptr<arena::ReceiveBuffer> receive_buffer;  // null: host to host
    bool is_made = false, is_being_made = false;
    std::vector<std::optional<arena::ReplicationState>> words;
    std::map<std::size_t, CheckpointId> fetching;   // by place
    std::map<std::size_t, ReceiveBackoff> backoff;  // likewise
    std::string trouble;
    std::uint64_t gpu_received_bytes = 0;
    std::uint64_t reserved_bytes = 0;
    std::uint32_t ticks = 0;  // since its state last changed
  };
  struct MemberRef {
    core::Rank rank = 0;
    Replication* replication = nullptr;
    std::size_t member = 0;
  };

  void open(core::Rank rank, Replication& replication);
  static bool is_live(const Replication& replication);
  void end(core::Rank rank, Replication& replication, const std::string& why);
  static std::optional<arena::ReplicationState> own_word(const Replication& replication);
  void notify_members(core::Rank rank, const Replication& replication) const;
  void notify_trainer(core::Rank rank, const Replication& replication) const;
  void make_places(core::Rank rank, Replication& replication);
  void made(core::Rank rank, std::uint64_t incarnation, std::optional<Failure> failure);
  void take(core::Rank rank, Replication& replication, std::size_t member, CheckpointId checkpoint);
  std::optional<MemberRef> find(const std::string& shard, core::NodeId source);

  const Dependencies deps_;
  std::map<core::Rank, Replication> replications_;
  std::optional<Deadline> repeat_at_;  // set while there is anything to repeat
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
