// The paths from GPU to GPU of this node's ranks (docs/gpu.md): makes the landing of a rank that has a group, carries
// the words of its members from agent to agent and between board and trainer, says where a piece lands, and up to what
// it was taken. All else is between the trainers, and nothing here is relied on: what does not come is fetched.
//
// Belongs to the core thread; only the places of a landing are made on a thread of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core_queue.hpp"
#include "agent/fields.hpp"
#include "agent/landing_patience.hpp"
#include "agent/segments.hpp"
#include "agent/worker_pool.hpp"
#include "arena/landing.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

class PathDesk {
 public:
  // All outlive the desk.
  struct Colleagues {
    const std::string& directory;  // of the arena
    Segments& segments;
    CoreQueue& queue;
    std::function<void(protocol::NodeId to, const PathTold& told)> send;
    std::function<void(protocol::Rank)> ring;                 // the rank's trainer: there is something to read
    std::function<void()> look;                               // something may have landed, or will not any more
    std::function<void(const std::string& sentence)> notice;  // for people
    // What slots will take that have still to be made, all ranks' own and those for peers, for pieces so large.
    std::function<std::uint64_t(std::uint64_t piece_bytes)> bytes_to_come;
  };
  explicit PathDesk(Colleagues colleagues) : with_(std::move(colleagues)) {}

  void tell(const protocol::TellPath& tell);
  // The trainer is gone, and with it its landing.
  void gone(protocol::Rank rank);
  // It cannot take part.
  void refuse(protocol::Rank rank, const std::string& why);
  // The trainer may have written something.
  void look(protocol::Rank rank);
  void heard(protocol::NodeId from, const PathTold& told);

  // Where a piece from that node lands. Nothing where the path does not live: then there is nothing to wait for.
  struct Place {
    protocol::Rank rank = 0;
    std::size_t number = 0;
    std::shared_ptr<const arena::Landing> landing;
  };
  std::optional<Place> place_of(const protocol::PieceInfo& piece, protocol::NodeId source);
  // The same for a fetch that begins. Nothing, too, where what was waited for lately has not come.
  std::optional<Place> place_to_wait_for(const protocol::PieceInfo& piece, protocol::NodeId source);
  // A fetch from that node begins: it wants nothing older any more. It has brought the piece, of which so much had
  // landed; none where it did not wait for any. It has ended, in whatever way.
  void fetching(const protocol::PieceInfo& piece, protocol::NodeId source);
  void brought(const protocol::PieceInfo& piece, protocol::NodeId source, std::optional<std::uint64_t> landed_bytes);
  void fetched(const protocol::PieceInfo& piece, protocol::NodeId source);
  // Nothing up to there is fetched any more.
  void committed(Version version);

  // Says again what may have been lost. To be called when it is wanted.
  void tick();
  std::optional<Deadline> tick_wanted_at() const { return repeat_at_; }

  // The landing's descriptor, for its trainer; none where it has no path.
  std::optional<int> landing_fd(protocol::Rank rank) const;
  struct Status {
    bool is_device = false;
    bool has_begun = false;  // with any version; before, members may still be on their way
    std::uint64_t landed_bytes = 0;
    std::string trouble;  // why it is the host's, "" where nobody asked for anything else
  };
  Status status(protocol::Rank rank) const;

 private:
  struct Path {
    std::uint64_t incarnation = 0;
    protocol::PathGroup group;
    std::shared_ptr<arena::Landing> landing;  // none: from host to host
    bool is_made = false, is_being_made = false;
    std::vector<std::optional<arena::PathWord>> words;  // of all members
    std::map<std::size_t, Version> fetching;            // by place
    std::map<std::size_t, LandingPatience> patience;    // likewise
    std::string trouble;
    std::uint64_t landed_bytes = 0;
    std::uint64_t reserved_bytes = 0;
    std::uint32_t ticks = 0;  // since what is told of it changed
  };
  struct Found {
    protocol::Rank rank = 0;
    Path* path = nullptr;
    std::size_t member = 0;
  };

  void open(protocol::Rank rank, Path& path);
  static bool lives(const Path& path);
  void end(protocol::Rank rank, Path& path, const std::string& why);
  static std::optional<arena::PathWord> own_word(const Path& path);
  void tell_members(protocol::Rank rank, const Path& path) const;
  void tell_trainer(protocol::Rank rank, const Path& path) const;
  void make_places(protocol::Rank rank, Path& path);
  void made(protocol::Rank rank, std::uint64_t incarnation, std::optional<Failure> failure);
  void take(protocol::Rank rank, Path& path, std::size_t member, Version version);
  std::optional<Found> find(const std::string& shard, protocol::NodeId source);

  const Colleagues with_;
  std::map<protocol::Rank, Path> paths_;
  std::optional<Deadline> repeat_at_;  // while there is anything to repeat
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
