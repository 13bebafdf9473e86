// ReplicationManager is the agent's part of GPU replication (docs/gpu.md). The trainers send and receive the pieces.
// The manager makes a receive buffer for each rank of this node that has a replication group. Here a member is a rank
// of such a group. The manager passes the states of the group's trainers on, through the agents of the other members.
// It also tells fetches where a piece arrives, and tells trainers which places are free again.
//
// If GPU replication fails, nothing is lost: pieces that do not arrive are fetched from host memory. Only the agent's
// core thread uses the manager. Another thread reserves and touches the memory of receive buffers.
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
    std::function<void(core::Rank)> ring;                     // wakes the rank's trainer, so that it reads its page
    std::function<void()> look;                               // makes fetches look whether bytes have arrived
    std::function<void(const std::string& sentence)> notice;  // writes a notice for people
    // Returns how much memory the agent still needs, in bytes, for slots that it has not made yet: those of this node's
    // ranks, and those for peers' pieces. Each piece counts as `piece_bytes`.
    std::function<std::uint64_t(std::uint64_t piece_bytes)> bytes_to_come;
  };
  explicit ReplicationManager(Dependencies dependencies) : deps_(std::move(dependencies)) {}

  // Takes the rank's replication group for a new incarnation, or the reason why it has none.
  void notify(const core::NotifyReplicationGroup& notify);
  // Call this when the rank's trainer is gone. Ends the replication and removes the receive buffer.
  void gone(core::Rank rank);
  // Call this when the rank's trainer cannot take part; `why` is the reason. Ends the rank's GPU replication.
  void refuse(core::Rank rank, const std::string& why);
  // Call this when the trainer may have written to its page.
  void look(core::Rank rank);
  // Takes the state of another member's trainer from that member's agent.
  void received(core::NodeId from, const core::ReplicationUpdate& update);

  // Where a piece from that node arrives by GPU replication: in the receive buffer of `rank`, at the place `number`. If
  // `source` is parity_node: where a GPU makes this parity. Nothing if it does not arrive: no rank here receives it,
  // the replication does not run, or the place may be overwritten.
  struct Place {
    core::Rank rank = 0;
    std::size_t number = 0;
    std::shared_ptr<const arena::ReceiveBuffer> receive_buffer;
  };
  std::optional<Place> place_of(const core::PieceInfo& piece, core::NodeId source);
  // Like place_of(), for a fetch that begins. Also returns nothing if the fetch should not wait, because recent waits
  // were in vain (receive_backoff.hpp).
  std::optional<Place> place_to_wait_for(const core::PieceInfo& piece, core::NodeId source);
  // Call these for each fetch from that node. fetching(): the fetch begins, and older pieces at this place of the
  // receive buffer are not needed any more. brought(): the fetch was complete. `gpu_received_bytes` of the piece came
  // by GPU replication; nothing if the fetch did not wait for that. fetched(): the fetch has ended, complete or not.
  void fetching(const core::PieceInfo& piece, core::NodeId source);
  void brought(const core::PieceInfo& piece, core::NodeId source, std::optional<std::uint64_t> gpu_received_bytes);
  void fetched(const core::PieceInfo& piece, core::NodeId source);
  // Call this when the job has committed: no fetch of a piece of this checkpoint or an older one will begin any more.
  void committed(CheckpointId checkpoint);

  // tick() repeats updates that may have been lost. Call it at the time that tick_wanted_at() returns. If
  // tick_wanted_at() returns nothing, there is nothing to repeat.
  void tick();
  std::optional<Deadline> tick_wanted_at() const { return repeat_at_; }

  // The descriptor of the rank's receive buffer, to be sent to its trainer. The receive buffer keeps it. Nothing if the
  // rank has no GPU replication.
  std::optional<int> receive_buffer_fd(core::Rank rank) const;
  struct Status {
    bool is_device = false;  // the rank's pieces go from GPU to GPU, not from host to host
    bool has_begun = false;  // the rank's trainer has named a checkpoint to exchange
    std::uint64_t gpu_received_bytes = 0;
    std::string trouble;  // why pieces go from host to host; "" if GPU replication works or was not wanted
  };
  Status status(core::Rank rank) const;

 private:
  struct Replication {
    std::uint64_t incarnation = 0;
    core::ReplicationGroup group;
    std::string parity;  // the name of the parity piece that the rank's GPU makes; "": it makes none
    std::shared_ptr<arena::ReceiveBuffer> receive_buffer;       // null: pieces go from host to host
    bool is_made = false, is_being_made = false;                // the receive buffer's places
    std::vector<std::optional<arena::ReplicationState>> words;  // by member: its state; none: not known yet
    std::map<std::size_t, CheckpointId> fetching;               // by place: the newest checkpoint being fetched
    std::map<std::size_t, ReceiveBackoff> backoff;              // by place
    std::string trouble;                                        // why it has ended; "" if it has not
    std::uint64_t gpu_received_bytes = 0;
    std::uint64_t reserved_bytes = 0;  // memory that the receive buffer takes of the arena
    std::uint32_t ticks = 0;           // calls of tick() since the state of its trainer last changed
  };
  struct MemberRef {
    core::Rank rank = 0;
    Replication* replication = nullptr;
    std::size_t member = 0;
  };

  void open(core::Rank rank, Replication& replication);
  static bool is_live(const Replication& replication);
  static std::uint64_t bytes_in_place(const core::PieceInfo& piece);
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
