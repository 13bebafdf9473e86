// Domains is the tree of failure domains: racks, switches, power feeds. One failure can take down all nodes of a
// domain. The leaves of the tree are the nodes. They may be at different depths. A Domains object never changes, so
// threads may share it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::placement {

inline constexpr std::uint32_t no_domain = UINT32_MAX;

class Domains {
 public:
  // Parses the tree of `nodes` nodes from text. A line is "CHILD PARENT". Every node has a line, and so has every
  // domain that is inside another one. A number is a node, any other word the name of a domain. '#' starts a comment.
  // Throws std::invalid_argument if a node does not exist, has no line or is a parent, if a node or domain has two
  // lines, and if a domain is inside itself. The text of the exception names the line, the node or the domain.
  static Domains parse(std::string_view text, std::uint32_t nodes);

  // A tree of one level: node n is in domain number domain_of[n].
  static Domains flat(const std::vector<std::uint32_t>& domain_of);

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(starts_.size() - 1); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(names_.size()); }
  const std::string& name(std::uint32_t domain) const { return names_[domain]; }

  // The domains that hold the node, from the outermost to the innermost. Domains that hold all nodes are left out,
  // because they separate nothing.
  std::span<const std::uint32_t> path(std::uint32_t node) const {
    return {path_.data() + starts_[node], starts_[node + 1] - starts_[node]};
  }
  // Returns how many domains of path(a) also hold node b.
  std::size_t shared_levels(std::uint32_t a, std::uint32_t b) const;
  // Returns the innermost domain that holds both nodes, or no_domain if none does.
  std::uint32_t shared(std::uint32_t a, std::uint32_t b) const;

  // Returns these nodes in another order: the nodes of a domain are next to each other, and at every level larger
  // domains come first. O(N log N) for trees of bounded depth.
  std::vector<std::uint32_t> ordered(std::span<const std::uint32_t> nodes) const;

 private:
  Domains() = default;
  void set_paths(const std::vector<std::uint32_t>& innermost, const std::vector<std::uint32_t>& parents);

  std::vector<std::string> names_;
  std::vector<std::uint32_t> path_;     // the paths of all nodes, one after the other
  std::vector<std::size_t> starts_{0};  // [node]: where its path begins in path_; at the end path_.size()
};

}  // namespace ckpt::placement
