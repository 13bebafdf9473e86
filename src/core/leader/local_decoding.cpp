#include "core/leader/local_decoding.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/leader/restore_decision.hpp"
#include "core/shard_parts.hpp"

namespace ckpt::core {

namespace {

using Lost = std::map<std::string, CodedPiece>::value_type;

bool is_on(NodeId node, std::string_view shard, const Pieces& pieces) {
  const auto holders = pieces.find(shard);
  return holders != pieces.end() && is_held_by(holders->second, node);
}

// The name of the parity group.
std::string group_of(const CodedPiece& lost) {
  const auto is_parity = [](const std::string& input) { return input.starts_with(parity_prefix); };
  const auto parity = std::find_if(lost.reads.begin(), lost.reads.end(), is_parity);
  return parity == lost.reads.end() ? "" : parse_part(*parity).shard;
}

// The nodes that restore the piece, or must hold it.
std::set<NodeId> nodes_of(const std::string& shard, const Places& places) {
  const auto place = places.find(shard);
  if (place == places.end()) return {};
  std::set<NodeId> nodes(place->second.owners.begin(), place->second.owners.end());
  nodes.insert(place->second.holders.begin(), place->second.holders.end());
  return nodes;
}

// The lost pieces of one parity group.
class Group {
 public:
  Group(const Pieces& pieces, const Places& places) : pieces_(pieces), places_(places) {}

  void add(const Lost& lost) {
    lost_.emplace_back(&lost, nodes_of(lost.first, places_));
    for (const std::string& input : lost.second.reads) {
      if (input.starts_with(parity_prefix))
        parity_.insert(input);
      else if (!data_.contains(input))
        data_.emplace(input, nodes_of(input, places_));
    }
  }
  // The nodes that need any of the pieces.
  std::set<NodeId> nodes() const {
    std::set<NodeId> all;
    for (const auto& [lost, nodes] : lost_) all.insert(nodes.begin(), nodes.end());
    return all;
  }
  void plan_for(NodeId node, LocalDecoding& plan) const {
    std::vector<std::string_view> decoded, fetched;
    std::uint64_t decoded_bytes = 0, fetched_bytes = 0;
    for (const auto& [lost, nodes] : lost_) {
      if (!nodes.contains(node) || is_on(node, lost->first, pieces_)) continue;
      decoded.push_back(lost->first);
      decoded_bytes += lost->second.piece.length_bytes;
    }
    for (const std::string_view parity : parity_) {
      if (is_on(node, parity, pieces_)) continue;
      fetched.push_back(parity);
      fetched_bytes += pieces_.find(parity)->second.front().piece->length_bytes;
    }
    const bool gets_data = std::all_of(data_.begin(), data_.end(), [&](const auto& input) {
      return input.second.contains(node) || is_on(node, input.first, pieces_);
    });
    if (decoded.empty() || !gets_data || fetched_bytes > decoded_bytes + decoded_bytes / 4) return;
    for (const std::string_view piece : decoded) plan.decoders[piece].push_back(node);
    for (const std::string_view parity : fetched) plan.readers[parity].push_back(node);
  }

 private:
  const Pieces& pieces_;
  const Places& places_;
  std::vector<std::pair<const Lost*, std::set<NodeId>>> lost_;  // with the nodes that need it
  // What decoding reads. The data with the nodes that get it anyway.
  std::map<std::string_view, std::set<NodeId>> data_;
  std::set<std::string_view> parity_;
};

}  // namespace

bool LocalDecoding::decodes(NodeId node, std::string_view shard) const {
  const auto found = decoders.find(shard);
  return found != decoders.end() && std::binary_search(found->second.begin(), found->second.end(), node);
}

LocalDecoding plan_local_decoding(const std::map<std::string, CodedPiece>& lost, const Pieces& pieces,
                                  const Places& places, const std::function<bool(NodeId)>& fetches) {
  std::map<std::string, Group> groups;
  for (const Lost& each : lost) {
    groups.try_emplace(group_of(each.second), pieces, places).first->second.add(each);
  }
  LocalDecoding plan;
  for (const auto& [name, group] : groups) {
    for (const NodeId node : group.nodes()) {
      if (fetches(node)) group.plan_for(node, plan);
    }
  }
  return plan;
}

}  // namespace ckpt::core
