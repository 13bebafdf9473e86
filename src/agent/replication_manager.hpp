// The GPU replication of this node's ranks (docs/gpu.md): makes the receive buffer of a rank that has a group, carries
// the words of its members from agent to agent and between page and trainer, says where a piece arrives, and up to what
// it was taken. All else is between the trainers, and nothing here is relied on: what does not come is fetched.
//
// Belongs to the core thread; only the places of a receive buffer are made on a thread of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core_queue.hpp"
#include "agent/fields.hpp"
#include "agent/receive_backoff.hpp"
#include "agent/segments.hpp"
#include "agent/worker_pool.hpp"
#include "arena/receive_buffer.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

class ReplicationManager {
 public:
  // All outlive the manager.
  struct Dependencies {
    const std::string& directory;  // of the arena
    Segments& segments;
    CoreQueue& queue;
    std::function<void(protocol::NodeId to, const ReplicationUpdate& update)> send;
    std::function<void(protocol::Rank)> ring;                 // the rank's trainer: there is something to read
    std::function<void()> look;                               // something may have arrived, or will not any more
    std::function<void(const std::string& sentence)> notice;  // for people
    // What slots will take that have still to be made, all ranks' own and those for peers, for pieces so large.
    std::function<std::uint64_t(std::uint64_t piece_bytes)> bytes_to_come;
  };
  explicit ReplicationManager(Dependencies dependencies) : deps_(std::move(dependencies)) {}

  void notify(const protocol::NotifyReplicationGroup& notify);
  // The trainer is gone, and with it its receive buffer.
  void gone(protocol::Rank rank);
  // It cannot take part.
  void refuse(protocol::Rank rank, const std::string& why);
  // The trainer may have written something.
  void look(protocol::Rank rank);
  void received(protocol::NodeId from, const ReplicationUpdate& update);

  // Where a piece from that node arrives. Nothing where the replication does not live: then there is nothing to wait
  // for.
  struct Place {
    protocol::Rank rank = 0;
    std::size_t number = 0;
    std::shared_ptr<const arena::ReceiveBuffer> receive_buffer;
  };
  std::optional<Place> place_of(const protocol::PieceInfo& piece, protocol::NodeId source);
  // The same for a fetch that begins. Nothing, too, where what was waited for lately has not come.
  std::optional<Place> place_to_wait_for(const protocol::PieceInfo& piece, protocol::NodeId source);
  // A fetch from that node begins: it wants nothing older any more. It has brought the piece, of which so much had
  // arrived; none where it did not wait for any. It has ended, in whatever way.
  void fetching(const protocol::PieceInfo& piece, protocol::NodeId source);
  void brought(const protocol::PieceInfo& piece, protocol::NodeId source,
               std::optional<std::uint64_t> gpu_received_bytes);
  void fetched(const protocol::PieceInfo& piece, protocol::NodeId source);
  // Nothing up to there is fetched any more.
  void committed(CheckpointId checkpoint);

  // Says again what may have been lost. To be called when it is wanted.
  void tick();
  std::optional<Deadline> tick_wanted_at() const { return repeat_at_; }

  // The receive buffer's descriptor, for its trainer; none where it has no replication.
  std::optional<int> receive_buffer_fd(protocol::Rank rank) const;
  struct Status {
    bool is_device = false;
    bool has_begun = false;  // with any checkpoint; before, members may still be on their way
    std::uint64_t gpu_received_bytes = 0;
    std::string trouble;  // why it is the host's, "" where nobody asked for anything else
  };
  Status status(protocol::Rank rank) const;

 private:
  struct Replication {
    std::uint64_t incarnation = 0;
    protocol::ReplicationGroup group;
    std::shared_ptr<arena::ReceiveBuffer> receive_buffer;  // none: from host to host
    bool is_made = false, is_being_made = false;
    std::vector<std::optional<arena::ReplicationState>> words;  // of all members
    std::map<std::size_t, CheckpointId> fetching;               // by place
    std::map<std::size_t, ReceiveBackoff> backoff;              // likewise
    std::string trouble;
    std::uint64_t gpu_received_bytes = 0;
    std::uint64_t reserved_bytes = 0;
    std::uint32_t ticks = 0;  // since what is told of it changed
  };
  struct MemberRef {
    protocol::Rank rank = 0;
    Replication* replication = nullptr;
    std::size_t member = 0;
  };

  void open(protocol::Rank rank, Replication& replication);
  static bool is_live(const Replication& replication);
  void end(protocol::Rank rank, Replication& replication, const std::string& why);
  static std::optional<arena::ReplicationState> own_word(const Replication& replication);
  void notify_members(protocol::Rank rank, const Replication& replication) const;
  void notify_trainer(protocol::Rank rank, const Replication& replication) const;
  void make_places(protocol::Rank rank, Replication& replication);
  void made(protocol::Rank rank, std::uint64_t incarnation, std::optional<Failure> failure);
  void take(protocol::Rank rank, Replication& replication, std::size_t member, CheckpointId checkpoint);
  std::optional<MemberRef> find(const std::string& shard, protocol::NodeId source);

  const Dependencies deps_;
  std::map<protocol::Rank, Replication> replications_;
  std::optional<Deadline> repeat_at_;  // while there is anything to repeat
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
