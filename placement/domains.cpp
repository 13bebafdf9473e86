#include "placement/domains.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

namespace ckpt::placement {
namespace {

using std::to_string;

std::optional<std::uint64_t> number(const std::string& word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(std::size_t line, const std::string& what) {
  throw std::invalid_argument("line " + to_string(line) + " of the domains: " + what);
}

// Throws if a domain is a parent of its own parents.
void refuse_cycles(const std::vector<std::uint32_t>& parents, const std::vector<std::string>& names) {
  std::vector<std::uint8_t> state(parents.size(), 0);  // 0: not seen; 1: on the present way up; 2: leads to a root
  for (std::uint32_t start = 0; start < parents.size(); ++start) {
    std::uint32_t domain = start;
    while (domain != no_domain && state[domain] == 0) {
      state[domain] = 1;
      domain = parents[domain];
    }
    if (domain != no_domain && state[domain] == 1) {
      throw std::invalid_argument(
          "domain '" + names[domain] +
          "' lies within itself: correct the lines \"CHILD PARENT\" that lead from it back to it");
    }
    for (domain = start; domain != no_domain && state[domain] == 1; domain = parents[domain]) state[domain] = 2;
  }
}

}  // namespace

Domains Domains::parse(std::string_view text, std::uint32_t nodes) {
  Domains domains;
  std::unordered_map<std::string, std::uint32_t> known;
  std::vector<std::uint32_t> parents;
  std::vector<std::uint32_t> innermost(nodes, no_domain);
  const auto domain_named = [&](const std::string& name) {
    const auto [entry, added] = known.emplace(name, domains.count());
    if (added) {
      domains.names_.push_back(name);
      parents.push_back(no_domain);
    }
    return entry->second;
  };

  std::istringstream lines{std::string(text)};
  std::string line;
  for (std::size_t at = 1; std::getline(lines, line); ++at) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string child;
    std::string parent;
    std::string more;
    if (!(words >> child)) continue;
    if (!(words >> parent) || words >> more) refuse(at, "expected \"CHILD PARENT\", found \"" + line + "\"");
    if (number(parent)) refuse(at, "node " + parent + " cannot be a domain; domains have names, nodes have numbers");
    const std::uint32_t above = domain_named(parent);
    const auto node = number(child);
    if (node && *node >= nodes) refuse(at, "there is no node " + child + ", only 0 to " + to_string(nodes - 1));
    const std::uint32_t below = node ? no_domain : domain_named(child);
    std::uint32_t& place = node ? innermost[*node] : parents[below];
    if (place != no_domain) refuse(at, (node ? "node " : "domain '") + child + (node ? "" : "'") + " is listed twice");
    place = above;
  }

  const auto missing = std::find(innermost.begin(), innermost.end(), no_domain);
  if (missing != innermost.end()) {
    throw std::invalid_argument("node " + to_string(missing - innermost.begin()) +
                                " is in no domain: add a line \"NODE DOMAIN\" for it");
  }
  refuse_cycles(parents, domains.names_);
  domains.set_paths(innermost, parents);
  return domains;
}

Domains Domains::flat(const std::vector<std::uint32_t>& domain_of) {
  Domains domains;
  for (const auto domain : domain_of) {
    while (domains.names_.size() <= domain) domains.names_.push_back("domain" + to_string(domains.names_.size()));
  }
  domains.set_paths(domain_of, std::vector<std::uint32_t>(domains.count(), no_domain));
  return domains;
}

void Domains::set_paths(const std::vector<std::uint32_t>& innermost, const std::vector<std::uint32_t>& parents) {
  std::vector<std::uint32_t> sizes(parents.size(), 0);
  for (const auto domain : innermost) {
    for (std::uint32_t at = domain; at != no_domain; at = parents[at]) ++sizes[at];
  }
  starts_.reserve(innermost.size() + 1);
  for (const auto domain : innermost) {
    for (std::uint32_t at = domain; at != no_domain; at = parents[at]) {
      if (sizes[at] < innermost.size()) path_.push_back(at);
    }
    std::reverse(path_.begin() + static_cast<std::ptrdiff_t>(starts_.back()), path_.end());
    starts_.push_back(path_.size());
  }
}

std::size_t Domains::shared_levels(std::uint32_t a, std::uint32_t b) const {
  const auto path_a = path(a);
  const auto path_b = path(b);
  std::size_t levels = 0;
  while (levels < path_a.size() && levels < path_b.size() && path_a[levels] == path_b[levels]) ++levels;
  return levels;
}

std::uint32_t Domains::shared(std::uint32_t a, std::uint32_t b) const {
  const std::size_t levels = shared_levels(a, b);
  return levels == 0 ? no_domain : path(a)[levels - 1];
}

std::vector<std::uint32_t> Domains::ordered(std::span<const std::uint32_t> nodes) const {
  std::unordered_map<std::uint32_t, std::uint32_t> sizes;
  for (const auto node : nodes) {
    for (const auto domain : path(node)) ++sizes[domain];
  }
  std::vector<std::uint32_t> order(nodes.begin(), nodes.end());
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto path_a = path(a);
    const auto path_b = path(b);
    for (std::size_t i = 0; i < std::min(path_a.size(), path_b.size()); ++i) {
      if (path_a[i] == path_b[i]) continue;
      const std::uint32_t size_a = sizes.at(path_a[i]);
      const std::uint32_t size_b = sizes.at(path_b[i]);
      return size_a != size_b ? size_a > size_b : path_a[i] < path_b[i];
    }
    return path_a.size() > path_b.size();
  });
  return order;
}

}  // namespace ckpt::placement
