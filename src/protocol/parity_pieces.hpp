// Parity among the stored pieces: what its pieces are called, what they are made of, and what can be made with their
// help. A parity piece tells all of that itself, so nothing needs to be remembered of the arrangement it was made in.
// Pure functions of what the nodes report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "placement/parity_layout.hpp"
#include "placement/parity_recovery.hpp"
#include "protocol/restore_decision.hpp"

namespace ckpt::protocol {

// Which parity a place is for: of a group of as many shards as it has members, "" where one has none.
struct ParityOf {
  std::uint32_t rows = 0;
  std::uint32_t member = 0;
  std::vector<std::string> shards;
};

// A group is called after the shards in it and nothing else, so that its pieces are found again whoever holds them.
std::string parity_name(std::uint32_t rows, const std::vector<std::string>& shards, std::uint32_t member);

// Whether there is such a group at all; all functions below take none else.
bool is_valid(const ParityManifest& parity_manifest);

// Of whole digest leaves: every shard counts as if it ended with one.
placement::ParityLayout layout_of(const ParityManifest& parity_manifest);

// A member's shard or its parity, among a group's pieces.
struct GroupPiece {
  std::uint32_t member = 0;
  bool is_parity = false;
  bool operator==(const GroupPiece&) const = default;
};
std::optional<GroupPiece> group_piece(const ParityManifest& parity_manifest, std::string_view shard);
// The reverse, for a position of one of the group's stripes.
std::string group_piece_name(const ParityManifest& parity_manifest, std::uint32_t member, std::uint32_t position);

// The member's shard of the checkpoint of `parity`, whose parity manifest has it.
PieceInfo source_piece(const PieceInfo& parity, std::uint32_t member);

// What of the group is not among these pieces, by name; and how the wanted one is made of the others. Nothing lost in
// the plan: it can be made.
placement::LostPieces lost_pieces(const ParityManifest& parity_manifest,
                                  const std::vector<CodingInputs::Source>& there);
placement::DecodePlan plan_coding(const ParityManifest& parity_manifest, const GroupPiece& wanted,
                                  const placement::LostPieces& lost);

// Something that no node has, or no one any more, and what it can be made of.
struct CodedPiece {
  PieceInfo piece;
  CodingInputs coding_inputs;
};

// Of one checkpoint's pieces: the shards that are lost and can be decoded.
std::map<std::string, CodedPiece> decodable(const Pieces& pieces);

// How to make this parity of one checkpoint's pieces, for the first time or anew; nothing where it cannot be.
std::optional<CodedPiece> plan_encoding(const ParityOf& parity, CheckpointId checkpoint, std::uint32_t world_size,
                                        const Pieces& pieces);

// Whether the piece is that parity, and what it was made of is what the checkpoint has.
bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces);

// How many members the group of this parity can still lose, of one checkpoint's pieces: 0 where no more than that, or
// not even that, is there.
std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces);

}  // namespace ckpt::protocol
