#include "protocol/parity.hpp"

#include <algorithm>

#include "protocol/hash.hpp"

namespace ckpt::protocol {

namespace {

using placement::parity_unit_bytes;
constexpr std::uint64_t length_bytes_max = std::uint64_t{1} << 53;  // sums of as many as a group has do not overflow

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

// Of all members.
std::vector<std::string> parity_names(std::uint32_t rows, const std::vector<std::string>& shards) {
  return parts_of(group_name(rows, shards), static_cast<std::uint32_t>(shards.size()));
}

std::vector<std::string> shards_of(const Recipe& recipe) {
  std::vector<std::string> shards;
  for (const Ingredient& ingredient : recipe.ingredients) shards.push_back(ingredient.shard);
  return shards;
}

Ingredient ingredient_of(const PieceInfo& piece) {
  return {piece.shard, piece.length_bytes, piece.layout_bytes, piece.root_digest};
}

// The piece, where its holders agree on it.
const Holders* found(const Pieces& pieces, const std::string& shard) {
  const auto holders = pieces.find(shard);
  return holders != pieces.end() && agree(holders->second) ? &holders->second : nullptr;
}

// All that is there of a group, and is what the recipe says.
std::vector<Making::Source> sources_of(const Recipe& recipe, const Pieces& pieces) {
  std::vector<Making::Source> sources;
  const auto add = [&](const std::string& shard, const Holders* holders) {
    for (std::size_t i = 0; i < std::min(holders->size(), sources_max); ++i)
      sources.push_back({shard, (*holders)[i].node, (*holders)[i].piece->root_digest});
  };
  const auto shards = shards_of(recipe);
  const auto names = parity_names(recipe.rows, shards);
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    const auto* data = found(pieces, shards[member]);
    if (data != nullptr && ingredient_of(*data->front().piece) == recipe.ingredients[member]) add(shards[member], data);
    const std::string& name = names[member];
    const auto* parity = found(pieces, name);
    if (parity != nullptr && parity->front().piece->recipe.ingredients == recipe.ingredients) add(name, parity);
  }
  return sources;
}

bool has_shard(const std::vector<Making::Source>& sources, const std::string& shard) {
  return std::any_of(sources.begin(), sources.end(), [&](const auto& source) { return source.shard == shard; });
}

// The recipe of any parity of the group that is there.
const PieceInfo* any_parity(const ParityOf& parity, const Pieces& pieces) {
  for (const std::string& name : parity_names(parity.rows, parity.shards)) {
    const auto* holders = found(pieces, name);
    if (holders != nullptr && shards_of(holders->front().piece->recipe) == parity.shards) return holders->front().piece;
  }
  return nullptr;
}

// From the pieces themselves, and for what is lost from another parity.
std::optional<Recipe> recipe_of(const ParityOf& parity, const Pieces& pieces) {
  Recipe recipe{parity.rows, parity.member, std::vector<Ingredient>(parity.shards.size())};
  const PieceInfo* other = any_parity(parity, pieces);
  for (std::uint32_t member = 0; member < parity.shards.size(); ++member) {
    if (parity.shards[member].empty()) continue;
    if (other != nullptr) {
      recipe.ingredients[member] = other->recipe.ingredients[member];
    } else if (const auto* holders = found(pieces, parity.shards[member])) {
      recipe.ingredients[member] = ingredient_of(*holders->front().piece);
    } else {
      return std::nullopt;
    }
  }
  return recipe;
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

bool is_valid(const Recipe& recipe) {
  return recipe.rows >= 1 && recipe.rows <= placement::max_parity_rows && recipe.ingredients.size() > recipe.rows &&
         recipe.ingredients.size() <= placement::max_parity_members && recipe.member < recipe.ingredients.size() &&
         std::all_of(recipe.ingredients.begin(), recipe.ingredients.end(),
                     [](const Ingredient& each) { return each.length_bytes <= length_bytes_max; });
}

placement::ParityLayout layout_of(const Recipe& recipe) {
  std::vector<std::uint64_t> lengths;
  for (const Ingredient& ingredient : recipe.ingredients) {
    lengths.push_back((ingredient.length_bytes + parity_unit_bytes - 1) / parity_unit_bytes * parity_unit_bytes);
  }
  return placement::ParityLayout(std::move(lengths), recipe.rows, parity_unit_bytes);
}

std::optional<GroupPiece> group_piece(const Recipe& recipe, std::string_view shard) {
  const auto shards = shards_of(recipe);
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    if (shards[member] == shard && !shard.empty()) return GroupPiece{member, false};
  }
  const Part part = parse_part(shard);
  if (part.of != shards.size() || parity_name(recipe.rows, shards, part.index) != shard) return std::nullopt;
  return GroupPiece{part.index, true};
}

std::string group_piece_name(const Recipe& recipe, std::uint32_t member, std::uint32_t position) {
  const bool is_parity = position >= recipe.ingredients.size() - recipe.rows;
  return is_parity ? parity_name(recipe.rows, shards_of(recipe), member) : recipe.ingredients.at(member).shard;
}

PieceInfo ingredient_piece(const PieceInfo& parity, std::uint32_t member) {
  const Ingredient& ingredient = parity.recipe.ingredients.at(member);
  return {ingredient.shard,        parity.version,         ingredient.length_bytes,
          ingredient.layout_bytes, ingredient.root_digest, parity.world_size};
}

placement::LostPieces lost_pieces(const Recipe& recipe, const std::vector<Making::Source>& there) {
  const auto layout = layout_of(recipe);
  const auto shards = shards_of(recipe);
  const auto names = parity_names(recipe.rows, shards);
  placement::LostPieces lost;
  for (std::uint32_t member = 0; member < shards.size(); ++member) {
    if (!shards[member].empty() && !has_shard(there, shards[member]))
      lost.add_shard_bytes(layout, member, {0, layout.length_bytes(member)});
    if (!has_shard(there, names[member])) lost.add_parity(layout, member);
  }
  return lost;
}

placement::DecodePlan plan_making(const Recipe& recipe, const GroupPiece& wanted, const placement::LostPieces& lost) {
  const auto layout = layout_of(recipe);
  if (!wanted.is_parity) return plan_shard(layout, lost, wanted.member, {0, layout.length_bytes(wanted.member)});
  placement::DecodePlan all;
  for (std::uint32_t row = 0; row < recipe.rows; ++row) {
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

std::map<std::string, Makeable> decodable(const Pieces& pieces) {
  std::map<std::string, Makeable> found_ways;
  std::string group;
  for (const auto* named : parity_among(pieces)) {
    const auto& [name, holders] = *named;
    const PieceInfo& parity = *holders.front().piece;
    if (!agree(holders) || !is_valid(parity.recipe)) continue;
    if (parse_part(name).shard == group) continue;  // its pieces are next to each other
    group = parse_part(name).shard;
    const auto& ingredients = parity.recipe.ingredients;
    if (std::all_of(ingredients.begin(), ingredients.end(),
                    [&](const Ingredient& each) { return each.shard.empty() || pieces.contains(each.shard); })) {
      continue;
    }
    const auto sources = sources_of(parity.recipe, pieces);
    const auto lost = lost_pieces(parity.recipe, sources);
    for (std::uint32_t member = 0; member < ingredients.size(); ++member) {
      const std::string& shard = ingredients[member].shard;
      if (shard.empty() || pieces.contains(shard)) continue;
      if (!plan_making(parity.recipe, {member, false}, lost).lost.empty()) continue;
      found_ways.try_emplace(shard, Makeable{ingredient_piece(parity, member), {parity.recipe, sources}});
    }
  }
  return found_ways;
}

std::optional<Makeable> make_parity(const ParityOf& parity, Version version, std::uint32_t world_size,
                                    const Pieces& pieces) {
  auto recipe = recipe_of(parity, pieces);
  if (!recipe || !is_valid(*recipe)) return std::nullopt;
  auto sources = sources_of(*recipe, pieces);
  const auto plan = plan_making(*recipe, {parity.member, true}, lost_pieces(*recipe, sources));
  if (!plan.lost.empty()) return std::nullopt;
  const std::uint64_t length_bytes = layout_of(*recipe).parity_bytes_of(parity.member);
  PieceInfo piece{
      parity_name(parity.rows, parity.shards, parity.member), version, length_bytes, 0, 0, world_size, *recipe};
  return Makeable{std::move(piece), {std::move(*recipe), std::move(sources)}};
}

bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces) {
  const Recipe& recipe = piece.recipe;
  if (recipe.rows != parity.rows || recipe.member != parity.member || shards_of(recipe) != parity.shards) return false;
  return std::all_of(recipe.ingredients.begin(), recipe.ingredients.end(), [&](const Ingredient& ingredient) {
    if (ingredient.shard.empty()) return true;
    const auto* holders = found(pieces, ingredient.shard);
    return holders != nullptr && ingredient_of(*holders->front().piece) == ingredient;
  });
}

std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces) {
  const auto recipe = recipe_of(parity, pieces);
  if (!recipe || !is_valid(*recipe)) return 0;
  const auto sources = sources_of(*recipe, pieces);
  const auto names = parity_names(parity.rows, parity.shards);
  std::uint32_t weakened = 0;
  for (std::uint32_t member = 0; member < parity.shards.size(); ++member) {
    const bool has_data = parity.shards[member].empty() || has_shard(sources, parity.shards[member]);
    const bool has_parity = has_shard(sources, names[member]);
    weakened += has_data && has_parity ? 0 : 1;
  }
  return parity.rows - std::min(parity.rows, weakened);
}

}  // namespace ckpt::protocol
