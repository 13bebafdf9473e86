// Names parity pieces, and plans how to encode and decode them. Each parity piece carries a parity manifest: what it
// was computed from. So a plan need not know where an earlier incarnation placed the pieces. Pure functions of the
// nodes' reports.
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

// Which parity a node must hold: the shards of its group, and the member whose parity it is. A member without a shard
// has the shard "".
struct ParityOf {
  std::uint32_t rows = 0;
  std::uint32_t member = 0;
  std::vector<std::string> shards;
};

// The name of a parity piece. It follows from the group's shards alone, so that the piece is found on any node.
std::string parity_name(std::uint32_t rows, const std::vector<std::string>& shards, std::uint32_t member);

// True if a group with this manifest can exist. All functions below require it.
bool is_valid(const ParityManifest& parity_manifest);

// The layout in whole digest leaves: the length of each shard is rounded up to a leaf.
placement::ParityLayout layout_of(const ParityManifest& parity_manifest);

// A piece of a parity group: a member's shard, or the parity that the member stores.
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

// lost_pieces() finds the group's pieces that are missing in `there`. plan_coding() plans how to compute `wanted` from
// the others. That is possible if the plan has nothing lost.
placement::LostPieces lost_pieces(const ParityManifest& parity_manifest,
                                  const std::vector<CodingInputs::Source>& there);
placement::DecodePlan plan_coding(const ParityManifest& parity_manifest, const GroupPiece& wanted,
                                  const placement::LostPieces& lost);

// A piece that no node has, with what is needed to compute it.
struct CodedPiece {
  PieceInfo piece;
  CodingInputs coding_inputs;
};

// The lost shards that can be decoded from one checkpoint's pieces.
std::map<std::string, CodedPiece> decodable(const Pieces& pieces);

// How to encode this parity from one checkpoint's pieces, for the first time or again. Nothing if that is impossible.
std::optional<CodedPiece> plan_encoding(const ParityOf& parity, CheckpointId checkpoint, std::uint32_t world_size,
                                        const Pieces& pieces);

// True if the piece is that parity, computed from exactly the shards that the checkpoint has.
bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces);

// How many more members this parity's group can lose, given one checkpoint's pieces. 0 if none, or if too much is lost
// already.
std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces);

}  // namespace ckpt::core
