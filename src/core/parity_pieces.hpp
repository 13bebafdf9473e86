// Names parity pieces, and plans how to encode and decode. Each parity piece has a parity manifest, which says from
// which shards it was computed. So a plan need not know how an earlier incarnation placed its pieces. Here a member is
// a node of a parity group, given by its number in the group. Pure functions, computed from the nodes' reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/leader/restore_decision.hpp"
#include "placement/parity_layout.hpp"
#include "placement/parity_recovery.hpp"

namespace ckpt::core {

// Which parity a node must hold.
struct ParityOf {
  std::uint32_t rows = 0;           // parity rows of the group (placement/parity_layout.hpp)
  std::uint32_t member = 0;         // the member that holds this parity
  std::vector<std::string> shards;  // the shard of each member; "" if the member has none
};

// The name of a parity piece. It follows from these arguments alone, so the piece is found on any node.
std::string parity_name(std::uint32_t rows, const std::vector<std::string>& shards, std::uint32_t member);

// True if there can be a parity group with this manifest. All functions below require that.
bool is_valid(const ParityManifest& parity_manifest);

// Returns how the group's parity lies. Each shard counts with its length rounded up to whole digest leaves.
placement::ParityLayout layout_of(const ParityManifest& parity_manifest);

// A piece of a parity group: a member's shard, or the parity that the member stores.
struct GroupPiece {
  std::uint32_t member = 0;
  bool is_parity = false;
  bool operator==(const GroupPiece&) const = default;
};
// Returns the piece of the group that has the name `shard`. Nothing if none has.
std::optional<GroupPiece> group_piece(const ParityManifest& parity_manifest, std::string_view shard);
// Returns the name of the member's piece that has this position of a stripe: its shard if that is a data position,
// otherwise the parity that it stores.
std::string group_piece_name(const ParityManifest& parity_manifest, std::uint32_t member, std::uint32_t position);

// The member's shard, as the parity manifest of `parity` describes it.
PieceInfo source_piece(const PieceInfo& parity, std::uint32_t member);

// lost_pieces() returns the pieces of the group that are not in `there`. plan_coding() plans how to compute the piece
// `wanted` from the pieces that are not lost. If the plan's `lost` is not empty, the piece cannot be computed.
placement::LostPieces lost_pieces(const ParityManifest& parity_manifest,
                                  const std::vector<CodingInputs::Source>& there);
placement::DecodePlan plan_coding(const ParityManifest& parity_manifest, const GroupPiece& wanted,
                                  const placement::LostPieces& lost);

// Returns the names of the pieces that are read to compute a piece after this plan.
std::set<std::string> inputs_of(const placement::DecodePlan& plan, const ParityManifest& parity_manifest);

// A piece that no node has, with what is needed to compute it.
struct CodedPiece {
  PieceInfo piece;
  CodingInputs coding_inputs;
  std::set<std::string> reads = {};  // inputs_of(), for a shard that is decoded
};

// The shards that no node has and that can be decoded from one checkpoint's pieces, by name. `decoded`: shards that
// count as lost although some node has them: it has decoded them.
std::map<std::string, CodedPiece> decodable(const Pieces& pieces, const std::set<std::string>& decoded = {});

// Plans how to encode this parity from one checkpoint's pieces, for the first time or again. Returns nothing if that is
// impossible.
std::optional<CodedPiece> plan_encoding(const ParityOf& parity, CheckpointId checkpoint, std::uint32_t world_size,
                                        const Pieces& pieces);

// True if the piece is this parity, and was computed from exactly the shards that are in `pieces`.
bool is_parity_of(const ParityOf& parity, const PieceInfo& piece, const Pieces& pieces);

// How many more members this parity's group can lose, given one checkpoint's pieces. Also 0 if too many are lost
// already.
std::uint32_t losses_left(const ParityOf& parity, const Pieces& pieces);

}  // namespace ckpt::core
