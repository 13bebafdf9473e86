// Domains is the tree of failure domains: racks, switches, power feeds. The nodes are its leaves. One failure can take
// down all nodes of a domain. The tree may have any depth, and branches of different depths. It never changes once
// made, so threads may share it.
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
  // Parses the tree from text. Each line is "CHILD PARENT", for every node (by number) and for every domain (by name)
  // that has a parent. '#' starts a comment. A number is a node, everything else a domain. Throws
  // std::invalid_argument, naming the line or the culprit, if a node is unknown, missing, listed twice or a parent, and
  // on a cycle.
  static Domains parse(std::string_view text, std::uint32_t nodes);

  // A tree of one level, from domain_of[node].
  static Domains flat(const std::vector<std::uint32_t>& domain_of);

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(starts_.size() - 1); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(names_.size()); }
  const std::string& name(std::uint32_t domain) const { return names_[domain]; }

  // A node's domains from the outermost to the innermost. A domain that holds all nodes separates nothing and is left
  // out.
  std::span<const std::uint32_t> path(std::uint32_t node) const {
    return {path_.data() + starts_[node], starts_[node + 1] - starts_[node]};
  }
  // How many domains hold both nodes.
  std::size_t shared_levels(std::uint32_t a, std::uint32_t b) const;
  // The innermost domain that holds both nodes, or no_domain.
  std::uint32_t shared(std::uint32_t a, std::uint32_t b) const;

  // The nodes, reordered: those of every domain are adjacent, and larger domains come first at every level. O(N log N)
  // for trees of bounded depth.
  std::vector<std::uint32_t> ordered(std::span<const std::uint32_t> nodes) const;

 private:
  Domains() = default;
  void set_paths(const std::vector<std::uint32_t>& innermost, const std::vector<std::uint32_t>& parents);

  std::vector<std::string> names_;
  std::vector<std::uint32_t> path_;     // the paths of all nodes, one after the other
  std::vector<std::size_t> starts_{0};  // into path_
};

}  // namespace ckpt::placement
