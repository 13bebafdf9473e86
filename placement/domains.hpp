// Failure domains: nodes are the leaves of a tree of named domains (rack, switch, power feed: any depth, not the same
// for all). What two nodes share, one failure can take from both. Pure; immutable once made; safe to share by threads.
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
  // The tree as text: a line "CHILD PARENT" for every node (by number) and every domain (by name) that has a parent;
  // '#' starts a comment. A number is a node, everything else a domain. Throws std::invalid_argument, naming the line
  // or the culprit, on a node that is unknown, missing or listed twice, a node as a parent, and a cycle.
  static Domains parse(std::string_view text, std::uint32_t nodes);

  // One level only: domain_of[node].
  static Domains flat(const std::vector<std::uint32_t>& domain_of);

  std::uint32_t nodes() const { return static_cast<std::uint32_t>(starts_.size() - 1); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(names_.size()); }
  const std::string& name(std::uint32_t domain) const { return names_[domain]; }

  // A node's domains from the outermost to the innermost. One that holds all nodes separates nothing and is left out.
  std::span<const std::uint32_t> path(std::uint32_t node) const {
    return {path_.data() + starts_[node], starts_[node + 1] - starts_[node]};
  }
  // How many domains hold both nodes, and the innermost of them, or no_domain.
  std::size_t shared_levels(std::uint32_t a, std::uint32_t b) const;
  std::uint32_t shared(std::uint32_t a, std::uint32_t b) const;

  // The nodes, with those of every domain next to each other and larger domains first at every level. O(N log N) for
  // trees of bounded depth.
  std::vector<std::uint32_t> ordered(std::span<const std::uint32_t> nodes) const;

 private:
  Domains() = default;
  void set_paths(const std::vector<std::uint32_t>& innermost, const std::vector<std::uint32_t>& parents);

  std::vector<std::string> names_;
  std::vector<std::uint32_t> path_;     // of all nodes, one after the other
  std::vector<std::size_t> starts_{0};  // into path_
};

}  // namespace ckpt::placement
