#include "core/parity_pieces.hpp"

#include <algorithm>

#include "core/hash.hpp"

namespace ckpt::core {

namespace {

using placement::parity_unit_bytes;
constexpr std::uint64_t length_bytes_max = std::uint64_t{1} << 53;  // sums over a group do not overflow

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

std::string group_name(std::uint32_t rows, const std::vector<std::string>& shards) {
  std::uint64_t hash = hash_of(hash_begin, std::to_string(rows));
  for (const std::string& shard : shards) hash = hash_of(hash, shard);
  return std::string(parity_prefix) + hex(hash);
}

// The manifests of all members.
std::vector<std::string> parity_names(std::uint32_t rows, const std::vector<std::string>& shards) {
  return parts_of(group_name(rows, shards), static_cast<std::uint32_t>(shards.size()));
}

std::vector<std::string> shards_of(const ParityManifest& parity_manifest) {
  std::vector<std::string> shards;
  for (const ParitySource& parity_source : parity_manifest.sources) shards.push_back(parity_source.shard);
  return shards;
}

ParitySource source_of(const PieceInfo& piece) {
  return {piece.shard, piece.length_bytes, piece.layout_bytes, piece.root_digest};
}

// The piece, if its holders agree on it.
const Holders* found(const Pieces& pieces, const std::string& shard) {
  const auto holders = pieces.find(shard);
  return holders != pieces.end() && agree(holders->second) ? &holders->second : nullptr;
}

// All pieces of a group that exist and match the parity manifest.
std::vector<CodingInputs::Source> sources_of(const ParityManifest& parity_manifest, const Pieces& pieces) {
  std::vector<CodingInputs::Source> sources;
  const auto add = [&](const std::string& shard, const Holders* holders) {
    for (std::size_t i = 0; i < std::min(holders->size(), sources_max); ++i)
      sources.push_back({shard, (*holders)[i].node, (*holders)[i].piece->root_digest});
  };
  const auto shards = shards_of(parity_manifest);
  const auto names = parity_names(parity_manifest.rows, shards);
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    const auto* data = found(pieces, shards[member]);
    if (data != nullptr && source_of(*data->front().piece) == parity_manifest.sources[member])
      add(shards[member], data);
    const std::string& name = names[member];
    const auto* parity = found(pieces, name);
    if (parity != nullptr && parity->front().piece->parity_manifest.sources == parity_manifest.sources)
      add(name, parity);
  }
  return sources;
}

bool has_shard(const std::vector<CodingInputs::Source>& sources, const std::string& shard) {
  return std::any_of(sources.begin(), sources.end(), [&](const auto& source) { return source.shard == shard; });
}

// The parity manifest of any parity of the group that exists.
const PieceInfo* any_parity(const ParityOf& parity, const Pieces& pieces) {
  for (const std::string& name : parity_names(parity.rows, parity.shards)) {
    const auto* holders = found(pieces, name);
    if (holders != nullptr && shards_of(holders->front().piece->parity_manifest) == parity.shards)
      return holders->front().piece;
  }
  return nullptr;
}

// Taken from the pieces themselves; for lost pieces, from another parity piece.
std::optional<ParityManifest> parity_manifest_of(const ParityOf& parity, const Pieces& pieces) {
  ParityManifest parity_manifest{parity.rows, parity.member, std::vector<ParitySource>(parity.shards.size())};
  const PieceInfo* other = any_parity(parity, pieces);
  for (std::uint32_t member = 0; member < parity.shards.size(); ++member) {
    if (parity.shards[member].empty()) continue;
    if (other != nullptr) {
      parity_manifest.sources[member] = other->parity_manifest.sources[member];
    } else if (const auto* holders = found(pieces, parity.shards[member])) {
      parity_manifest.sources[member] = source_of(*holders->front().piece);
    } else {
      return std::nullopt;
    }
  }
  return parity_manifest;
}

// By name.
std::vector<const Pieces::value_type*> parity_among(const Pieces& pieces) {
  std::vector<const Pieces::value_type*> found;
  for (const auto& entry : pieces) {
    if (entry.first.starts_with(parity_prefix)) found.push_back(&entry);
  }
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  return found;
}

}  // namespace

std::string parity_name(std::uint32_t rows, const std::vector<std::string>& shards, std::uint32_t member) {
  return part_name(group_name(rows, shards), member, static_cast<std::uint32_t>(shards.size()));
}

bool is_valid(const ParityManifest& parity_manifest) {
  return parity_manifest.rows >= 1 && parity_manifest.rows <= placement::max_parity_rows &&
         parity_manifest.sources.size() > parity_manifest.rows &&
         parity_manifest.sources.size() <= placement::max_parity_members &&
         parity_manifest.member < parity_manifest.sources.size() &&
         std::all_of(parity_manifest.sources.begin(), parity_manifest.sources.end(),
                     [](const ParitySource& each) { return each.length_bytes <= length_bytes_max; });
}

placement::ParityLayout layout_of(const ParityManifest& parity_manifest) {
  std::vector<std::uint64_t> lengths;
  for (const ParitySource& parity_source : parity_manifest.sources) {
    lengths.push_back((parity_source.length_bytes + parity_unit_bytes - 1) / parity_unit_bytes * parity_unit_bytes);
  }
  return placement::ParityLayout(std::move(lengths), parity_manifest.rows, parity_unit_bytes);
}

std::optional<GroupPiece> group_piece(const ParityManifest& parity_manifest, std::string_view shard) {
  const auto shards = shards_of(parity_manifest);
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    if (shards[member] == shard && !shard.empty()) return GroupPiece{member, false};
  }
  const ShardPart part = parse_part(shard);
  if (part.of != shards.size() || parity_name(parity_manifest.rows, shards, part.index) != shard) return std::nullopt;
  return GroupPiece{part.index, true};
}

std::string group_piece_name(const ParityManifest& parity_manifest, std::uint32_t member, std::uint32_t position) {
  const bool is_parity = position >= parity_manifest.sources.size() - parity_manifest.rows;
  return is_parity ? parity_name(parity_manifest.rows, shards_of(parity_manifest), member)
                   : parity_manifest.sources.at(member).shard;
}

PieceInfo source_piece(const PieceInfo& parity, std::uint32_t member) {
  const ParitySource& parity_source = parity.parity_manifest.sources.at(member);
  return {parity_source.shard,        parity.checkpoint,         parity_source.length_bytes,
          parity_source.layout_bytes, parity_source.root_digest, parity.world_size};
}

placement::LostPieces lost_pieces(const ParityManifest& parity_manifest,
                                  const std::vector<CodingInputs::Source>& there) {
  const auto layout = layout_of(parity_manifest);
  const auto shards = shards_of(parity_manifest);
  const auto names = parity_names(parity_manifest.rows, shards);
  placement::LostPieces lost;
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    if (!shards[member].empty() && !has_shard(there, shards[member]))
      lost.add_shard_bytes(layout, member, {0, layout.length_bytes(member)});
    if (!has_shard(there, names[member])) lost.add_parity(layout, member);
  }
  return lost;
}

placement::DecodePlan plan_coding(const ParityManifest& parity_manifest, const GroupPiece& wanted,
                                  const placement::LostPieces& lost) {
  const auto layout = layout_of(parity_manifest);
  if (!wanted.is_parity) return plan_shard(layout, lost, wanted.member, {0, layout.length_bytes(wanted.member)});
  placement::DecodePlan all;
  for (std::uint32_t row = 0; row < parity_manifest.rows; ++row) {
    const std::uint32_t stripe = layout.stripe_of_row(wanted.member, row);
    auto plan = plan_parity(layout, lost, stripe, row, {0, layout.parity_bytes(stripe)});
    const std::uint64_t offset = layout.row_offset(wanted.member, row);
    for (auto& step : plan.steps) {
      step.bytes.first_byte += offset;
      all.steps.push_back(std::move(step));
    }
    for (auto& bytes : plan.lost) all.lost.push_back({bytes.first_byte + offset, bytes.size_bytes});
  }
  return all;
}

std::set<std::string> inputs_of(const placement::DecodePlan& plan, const ParityManifest& parity_manifest) {
  std::set<std::string> inputs;
  for (const auto& step : plan.steps) {
    for (const auto& source : step.sources) {
      if (source.bytes.size_bytes != 0)
        inputs.insert(group_piece_name(parity_manifest, source.member, source.position));
    }
  }
  return inputs;
}

std::map<std::string, CodedPiece> decodable(const Pieces& pieces, const std::set<std::string>& decoded) {
  const auto is_there = [&](const std::string& shard) { return pieces.contains(shard) && !decoded.contains(shard); };
  std::map<std::string, CodedPiece> found_ways;
  std::string group;
  for (const auto* named : parity_among(pieces)) {
    const auto& [name, holders] = *named;
    const PieceInfo& parity = *holders.front().piece;
    if (!agree(holders) || !is_valid(parity.parity_manifest)) continue;
    if (parse_part(name).shard == group) continue;  // the pieces of a group are next to each other
    group = parse_part(name).shard;
    const auto& parity_sources = parity.parity_manifest.sources;
    if (std::all_of(parity_sources.begin(), parity_sources.end(),
                    [&](const ParitySource& each) { return each.shard.empty() || is_there(each.shard); })) {
      continue;
    }
    auto sources = sources_of(parity.parity_manifest, pieces);
    std::erase_if(sources, [&](const auto& source) { return decoded.contains(source.shard); });
    const auto lost = lost_pieces(parity.parity_manifest, sources);
    for (std::uint32_t member = 0; member < parity_sources.size(); ++member) {
      const std::string& shard = parity_sources[member].shard;
      if (shard.empty() || is_there(shard)) continue;
      const auto plan = plan_coding(parity.parity_manifest, {member, false}, lost);
      if (!plan.lost.empty()) continue;
      found_ways.try_emplace(shard, CodedPiece{source_piece(parity, member),
                                               {parity.parity_manifest, sources},
                                               inputs_of(plan, parity.parity_manifest)});
    }
  }
  return found_ways;
}

std::optional<CodedPiece> plan_encoding(const ParityOf& parity, CheckpointId checkpoint, std::uint32_t world_size,
                                        const Pieces& pieces) {
  auto parity_manifest = parity_manifest_of(parity, pieces);
  if (!parity_manifest || !is_valid(*parity_manifest)) return std::nullopt;
  auto sources = sources_of(*parity_manifest, pieces);
  const auto plan = plan_coding(*parity_manifest, {parity.member, true}, lost_pieces(*parity_manifest, sources));
  if (!plan.lost.empty()) return std::nullopt;
  const std::uint64_t length_bytes = layout_of(*parity_manifest).parity_bytes_of(parity.member);
  PieceInfo piece{parity_name(parity.rows, parity.shards, parity.member),
                  checkpoint,
                  length_bytes,
                  0,
                  0,
                  world_size,
                  *parity_manifest};
  return CodedPiece{std::move(piece), {std::move(*parity_manifest), std::move(sources)}};
}

bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces) {
  const ParityManifest& parity_manifest = piece.parity_manifest;
  if (parity_manifest.rows != parity.rows || parity_manifest.member != parity.member ||
      shards_of(parity_manifest) != parity.shards)
    return false;
  return std::all_of(parity_manifest.sources.begin(), parity_manifest.sources.end(),
                     [&](const ParitySource& parity_source) {
                       if (parity_source.shard.empty()) return true;
                       const auto* holders = found(pieces, parity_source.shard);
                       return holders != nullptr && source_of(*holders->front().piece) == parity_source;
                     });
}

std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces) {
  const auto parity_manifest = parity_manifest_of(parity, pieces);
  if (!parity_manifest || !is_valid(*parity_manifest)) return 0;
  const auto sources = sources_of(*parity_manifest, pieces);
  const auto names = parity_names(parity.rows, parity.shards);
  std::uint32_t weakened = 0;
  for (std::uint32_t member = 0; member < parity.shards.size(); ++member) {
    const bool has_data = parity.shards[member].empty() || has_shard(sources, parity.shards[member]);
    const bool has_parity = has_shard(sources, names[member]);
    weakened += has_data && has_parity ? 0 : 1;
  }
  return parity.rows - std::min(parity.rows, weakened);
}

}  // namespace ckpt::core
