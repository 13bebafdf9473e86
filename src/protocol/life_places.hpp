// Where everything of a life belongs: arranged once, from its record, and asked for by shard or by node. Stand-ins take
// places in it without anything being arranged anew.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/arrangement.hpp"
#include "protocol/messages.hpp"
#include "protocol/seating.hpp"

namespace ckpt::protocol {

// What a node has to do with a part.
struct Role {
  bool owns = false;
  bool captures = false;
  bool holds = false;
};
Role role_of(NodeId node, const Place& place);

class LifePlaces {
 public:
  struct Task {
    const Places::value_type* place = nullptr;  // with the part's name
    Role role;
  };
  using Tasks = std::vector<Task>;

  LifePlaces() = default;  // of no life yet
  LifePlaces(const LifeRecord& life, const Seating& seating);
  LifePlaces(LifePlaces&&) = default;
  LifePlaces& operator=(LifePlaces&&) = default;

  // These, and none of those before.
  void stand_in(const std::vector<StandIn>& stand_ins);

  bool is_arranged() const { return !own_.arranged.empty(); }
  const std::string& notice() const { return notice_; }
  const Share* share_of(Rank rank) const;     // null before anything is arranged
  const PathGroup* path_of(Rank rank) const;  // likewise, and for ranks that do not ask for it

  // Of what the life captures, and of a version that it may have restored, which may have been stored otherwise.
  const Places& own() const { return own_.now(); }
  const Places& of(Version version) const { return layout_of(version).now(); }
  // What the node holds or its ranks restore from, by name.
  const Tasks& own_of(NodeId node) const { return own_.tasks_of(node); }
  const Tasks& of(NodeId node, Version version) const { return layout_of(version).tasks_of(node); }

 private:
  struct Layout {
    Places arranged;
    std::optional<Places> stood_in;           // where anybody stands in
    std::unordered_map<NodeId, Tasks> tasks;  // of now()

    const Places& now() const { return stood_in ? *stood_in : arranged; }
    const Tasks& tasks_of(NodeId node) const;
    void stand_in(const std::vector<StandIn>& stand_ins);
  };
  const Layout& layout_of(Version version) const { return restored_ && version == began_from_ ? *restored_ : own_; }

  Layout own_;
  std::optional<Layout> restored_;  // where that is stored otherwise
  Version began_from_;
  std::unordered_map<Rank, Share> shares_;
  std::map<Rank, PathGroup> paths_;
  std::vector<StandIn> stand_ins_;
  std::string notice_;
};

}  // namespace ckpt::protocol
