// Parity pieces: their names, what they are computed from, and what they help to decode. A parity piece carries all of
// this in its parity manifest, so nobody needs to remember the placement it was made in. Pure functions of what the
// nodes report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/leader/restore_decision.hpp"
#include "placement/parity_layout.hpp"
#include "placement/parity_recovery.hpp"

namespace ckpt::core {

// The parity that belongs in a place. The group has one shard per member, "" for a member without one.
struct ParityOf {
  std::uint32_t rows = 0;
  std::uint32_t member = 0;
  std::vector<std::string> shards;
};

// The name of a parity piece. It follows from the group's shards alone, so that the piece is found on any node.
std::string parity_name(std::uint32_t rows, const std::vector<std::string>& shards, std::uint32_t member);

// Whether such a group can exist. All functions below require it.
bool is_valid(const ParityManifest& parity_manifest);

// The layout in whole digest leaves: the length of each shard is rounded up to a leaf.
placement::ParityLayout layout_of(const ParityManifest& parity_manifest);

// A member's shard or its parity, among a group's pieces.
struct GroupPiece {
  std::uint32_t member = 0;
  bool is_parity = false;
  bool operator==(const GroupPiece&) const = default;
};
std::optional<GroupPiece> group_piece(const ParityManifest& parity_manifest, std::string_view shard);
// The name of the piece at a position of one of the group's stripes.
std::string group_piece_name(const ParityManifest& parity_manifest, std::uint32_t member, std::uint32_t position);

// The member's shard, as the parity manifest of `parity` describes it.
PieceInfo source_piece(const PieceInfo& parity, std::uint32_t member);

// Which pieces of the group are missing from `there`; and how to compute the wanted piece from the others. It can be
// computed if the plan has nothing lost.
placement::LostPieces lost_pieces(const ParityManifest& parity_manifest,
                                  const std::vector<CodingInputs::Source>& there);
placement::DecodePlan plan_coding(const ParityManifest& parity_manifest, const GroupPiece& wanted,
                                  const placement::LostPieces& lost);

// A piece that no node has, and what it can be encoded or decoded from.
struct CodedPiece {
  PieceInfo piece;
  CodingInputs coding_inputs;
};

// The lost shards that can be decoded from one checkpoint's pieces.
std::map<std::string, CodedPiece> decodable(const Pieces& pieces);

// How to encode this parity from one checkpoint's pieces, for the first time or again. Nothing if that is impossible.
std::optional<CodedPiece> plan_encoding(const ParityOf& parity, CheckpointId checkpoint, std::uint32_t world_size,
                                        const Pieces& pieces);

// Whether the piece is that parity, computed from exactly the shards that the checkpoint has.
bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces);

// How many more members the group of this parity can lose, given one checkpoint's pieces. 0 if it can lose none, and
// also if too much is lost already.
std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces);

}  // namespace ckpt::core
