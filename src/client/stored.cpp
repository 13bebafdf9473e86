#include "client/stored.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace ckpt::client {
namespace {

StoredPiece take_piece(const nlohmann::json& json, std::vector<UniqueFd>& fds) {
  const auto fd = json.at("fd").get<std::size_t>();
  const auto index = json.at("slot").get<std::uint32_t>();
  if (fd >= fds.size() || !fds[fd])
    throw Failure(CKPT_ERR_INTERNAL,
                  "the agent's answer to restore lacks the segment of a piece: this is a bug in ckptengine; report it "
                  "with the agent's log");
  auto segment =
      arena::Segment::attach(std::move(fds[fd]), arena::Segment::Access::read, "a segment that the agent sent");
  if (index >= segment.slots())
    throw Failure(CKPT_ERR_INTERNAL, "the agent named slot " + std::to_string(index) + ", but the segment has " +
                                         std::to_string(segment.slots()) +
                                         " slots: this is a bug in ckptengine; report it with the agent's log");
  const arena::Slot slot = segment.slot(index);
  auto manifest = slot.read();
  if (!manifest) throw CorruptPiece{segment.spec().shard, slot.checkpoint(), 0};
  auto layout = arena::parse_layout(manifest->layout);
  const core::ShardPart part = core::parse_part(manifest->shard);
  if (arena::range_of(part, layout.length_bytes).size_bytes != manifest->length_bytes)
    throw CorruptPiece{manifest->shard, manifest->checkpoint, 0};
  const auto tier = json.at("tier").get<unsigned>();
  if (tier > CKPT_TIER_PERSISTENT)
    throw Failure(CKPT_ERR_INTERNAL, "the agent named the unknown tier " + std::to_string(tier) +
                                         "; run ckptd and libckptengine of one version");
  return {std::move(segment), slot, std::move(*manifest), std::move(layout), static_cast<ckpt_tier>(tier)};
}

void check_shard(const char* which, const StoredPiece& stored, const ShardState& registered) {
  const auto difference = arena::first_difference(stored.layout, registered.layout);
  if (!difference) return;
  throw Failure(CKPT_ERR_MISMATCH,
                std::string("the stored state has another layout: in the ") + which + " shard, " + *difference +
                    "; register the state as it was stored (see ckpt_stored_layout()), or give the job another name");
}

// All of the main shard, and all of one checkpoint.
void check_parts(const Stored& stored, bool takes_over) {
  const CheckpointId checkpoint = stored.private_->manifest.checkpoint;
  bool agree = checkpoint.iteration() == stored.iteration && stored.main.empty() == takes_over;
  for (const StoredPiece& piece : stored.taken)
    agree = agree && piece.manifest.checkpoint == checkpoint &&
            piece.manifest.world_size == stored.private_->manifest.world_size;
  for (std::size_t i = 0; i < stored.main.size(); ++i) {
    const arena::Manifest& manifest = stored.main[i].manifest;
    const core::ShardPart part = core::parse_part(manifest.shard);
    agree = agree && manifest.checkpoint == checkpoint && part.index == i && part.of == stored.main.size() &&
            manifest.layout_hash == stored.main.front().manifest.layout_hash &&
            manifest.world_size == stored.private_->manifest.world_size;
  }
  if (!agree)
    throw Failure(CKPT_ERR_INTERNAL,
                  "the agent's answer names pieces that do not belong together: this is a bug in ckptengine; report it "
                  "with the agent's log");
}

// A missing receive buffer never makes a restore fail.
void take_receive_buffer(std::size_t fd, std::vector<UniqueFd>& fds, Stored& stored) {
  try {
    if (fd >= fds.size() || !fds[fd])
      throw Failure(CKPT_ERR_INTERNAL,
                    "the agent's answer to restore lacks the receive buffer: this is a bug in ckptengine; report it "
                    "with the agent's log");
    stored.receive_buffer = arena::ReceiveBuffer::attach(std::move(fds[fd]));
  } catch (const Failure& failure) {
    stored.no_receive_buffer = failure.what();
  }
}

}  // namespace

Stored take_stored(Frame answer) {
  try {
    const auto& json = answer.body;
    Stored stored;
    stored.found = json.at("found").get<bool>();
    stored.behind = json.value("behind", false);
    stored.status_unknown = json.value("status_unknown", false);
    stored.message = json.value("message", "");
    stored.incarnation = json.at("incarnation").get<std::uint64_t>();
    stored.fetch_ms = json.value("fetch_ms", 0.0);
    if (stored.incarnation == 0 || stored.incarnation > CheckpointId::incarnation_max)
      throw Failure(CKPT_ERR_INTERNAL, "the agent named the impossible incarnation " +
                                           std::to_string(stored.incarnation) +
                                           ": this is a bug in ckptengine; report it with the agent's log");
    stored.is_replicated = json.value("is_replicated", false);
    const auto& share = json.at("share");
    stored.share = {share.at("first").get<std::uint32_t>(), share.at("of").get<std::uint32_t>(),
                    share.at("stored").get<std::uint32_t>()};
    if (!core::is_valid(stored.share))
      throw Failure(CKPT_ERR_INTERNAL,
                    "the agent named an impossible share of the main shard: this is a bug in ckptengine; report it "
                    "with the agent's log");
    if (const auto replication = json.find("replication"); replication != json.end())
      take_receive_buffer(replication->at("fd").get<std::size_t>(), answer.fds, stored);
    if (!stored.found) return stored;
    stored.iteration = json.at("iteration").get<std::int64_t>();
    for (const auto& part : json.at("main")) stored.main.push_back(take_piece(part, answer.fds));
    stored.private_ = take_piece(json.at("private"), answer.fds);
    const auto taken = json.find("taken");
    if (taken != json.end())
      for (const auto& piece : *taken) stored.taken.push_back(take_piece(piece, answer.fds));
    check_parts(stored, taken != json.end());
    return stored;
  } catch (const nlohmann::json::exception& error) {
    throw Failure(CKPT_ERR_INTERNAL, std::string("the agent's answer to restore is not understood (") + error.what() +
                                         "); run ckptd and libckptengine of one version");
  }
}

void check_matches(const Stored& stored, const RankState& state) {
  if (!stored.found) return;
  check_shard("main", stored.main.front(), state.main);
  check_shard("private", *stored.private_, state.private_);
}

std::vector<const StoredPiece*> pieces_of(const Stored& stored, const std::string& shard) {
  std::vector<const StoredPiece*> pieces;
  if (!stored.found) return pieces;
  if (stored.private_->manifest.shard == shard) return {&*stored.private_};
  for (const auto* each : {&stored.main, &stored.taken})
    for (const StoredPiece& piece : *each)
      if (core::parse_part(piece.manifest.shard).shard == shard) pieces.push_back(&piece);
  return pieces;
}

std::string stored_layout_json(const arena::Manifest& main, const arena::Manifest& private_,
                               std::uint64_t incarnation) {
  return "{\"found\":true,\"iteration\":" + std::to_string(private_.checkpoint.iteration()) +
         ",\"incarnation\":" + std::to_string(incarnation) + ",\"main\":" + main.layout +
         ",\"private\":" + private_.layout + ",\"shards\":{\"main\":\"" + core::parse_part(main.shard).shard +
         "\",\"private\":\"" + private_.shard + "\"}}";
}

std::string stored_layout_json(const Stored& stored) {
  if (stored.found && !stored.is_taken_over())
    return stored_layout_json(stored.main.front().manifest, stored.private_->manifest, stored.incarnation);
  std::string json = "{\"found\":" + std::string(stored.found ? "true" : "false") +
                     ",\"iteration\":" + std::to_string(stored.iteration) +
                     ",\"incarnation\":" + std::to_string(stored.incarnation) +
                     ",\"main\":{},\"private\":" + (stored.private_ ? stored.private_->manifest.layout : "{}");
  if (!stored.found) return json + "}";
  json += ",\"taken\":{\"" + stored.private_->manifest.shard + "\":" + stored.private_->manifest.layout;
  for (const StoredPiece& piece : stored.taken) {
    const core::ShardPart part = core::parse_part(piece.manifest.shard);
    if (part.index == 0) json += ",\"" + part.shard + "\":" + piece.manifest.layout;
  }
  return json + "}}";
}

}  // namespace ckpt::client
