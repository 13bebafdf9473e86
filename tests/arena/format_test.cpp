// The offsets that docs/arena.md gives.

#include "arena/format.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace ckpt::arena {
namespace {

static_assert(offsetof(LandingHeader, magic) == 0 && offsetof(LandingHeader, format) == 8 &&
              offsetof(LandingHeader, places) == 12 && offsetof(LandingHeader, capacity_bytes) == 16 &&
              offsetof(LandingHeader, incarnation) == 272 && offsetof(LandingHeader, member) == 280 &&
              offsetof(LandingHeader, ready) == 288 && offsetof(LandingHeader, place) == 320 &&
              sizeof(LandingHeader::Place) == 64 && offsetof(LandingHeader::Place, version) == 0 &&
              offsetof(LandingHeader::Place, landed_bytes) == 8);
static_assert(offsetof(PathWords, own) == 0 && offsetof(PathWords::Told, sequence) == 0 &&
              offsetof(PathWords::Told, words) == 8 && sizeof(PathWords::Told) == 192 &&
              offsetof(PathWords, has_failed) == 192 && offsetof(PathWords, failure) == 200 &&
              offsetof(PathWords, taken) == 448 && offsetof(PathWords, members) == 704 && path_words_bytes == 8192);
static_assert(offsetof(NodeHeader, magic) == 0 && offsetof(NodeHeader, format) == 8 &&
              offsetof(NodeHeader, reserved) == 12 && offsetof(NodeHeader, arena_id) == 16 &&
              offsetof(NodeHeader, job) == 24 && offsetof(NodeHeader, node) == 280 &&
              offsetof(NodeHeader, format_3) == 576 && offsetof(NodeHeader, copies) == 640 && sizeof(NodeWords) == 128);
static_assert(offsetof(NodeWords, arena_id) == 0 && offsetof(NodeWords, number) == 8 &&
              offsetof(NodeWords, highest_commit) == 16 && offsetof(NodeWords, newest_seen) == 24 &&
              offsetof(NodeWords, highest_epoch) == 32 && offsetof(NodeWords, newest_damaged) == 40 &&
              offsetof(NodeWords, token) == 48 && offsetof(NodeWords, check) == 80);
static_assert(offsetof(RankControl, magic) == 0 && offsetof(RankControl, format) == 8 &&
              offsetof(RankControl, rank) == 12 && offsetof(RankControl, grant) == 64 &&
              offsetof(RankControl, resume_at) == 72 && offsetof(RankControl, committed) == 80 &&
              offsetof(RankControl, share) == 88 && offsetof(RankControl, fenced) == 96 &&
              offsetof(RankControl, writer_pid) == 104 && offsetof(RankControl, writer_start_ticks) == 112 &&
              offsetof(RankControl, agent_bell) == 120 && offsetof(RankControl, used_grant) == 128 &&
              offsetof(RankControl, attempted) == 136 && offsetof(RankControl, capturing) == 144 &&
              offsetof(RankControl, trainer_bell) == 152 && offsetof(RankControl, not_taken) == 160 &&
              offsetof(RankControl, health) == 192 && offsetof(HealthWords, beats) == 0 &&
              offsetof(HealthWords, sequence) == 8 && offsetof(HealthWords, words) == 16);
static_assert(offsetof(CommWords, written) == 0 && offsetof(CommWords, streams) == 64 &&
              sizeof(CommWords::Stream) == 8 && offsetof(CommWords::Stream, begun) == 0 &&
              offsetof(CommWords::Stream, ended) == 4 && offsetof(CommWords, events) == 128 &&
              offsetof(CommWords, on_gpu) == 32'896 && sizeof(CommWords) == 41'088 && control_file_bytes == 49'152);
static_assert(format_version == 4 && node_format_version == 4);
static_assert(offsetof(SegmentHeader, magic) == 0 && offsetof(SegmentHeader, format) == 8 &&
              offsetof(SegmentHeader, kind) == 12 && offsetof(SegmentHeader, rank) == 16 &&
              offsetof(SegmentHeader, slots) == 20 && offsetof(SegmentHeader, data_capacity_bytes) == 24 &&
              offsetof(SegmentHeader, manifest_capacity_bytes) == 32 && offsetof(SegmentHeader, shard) == 40 &&
              offsetof(SegmentHeader, ready) == 320);
static_assert(offsetof(SlotHeader, seal) == 0 && offsetof(SlotHeader, version) == 8 &&
              offsetof(SlotHeader, length_bytes) == 16 && offsetof(SlotHeader, root_digest) == 24 &&
              offsetof(SlotHeader, layout_bytes) == 32 && offsetof(SlotHeader, layout_hash) == 40 &&
              offsetof(SlotHeader, world_size) == 48 && offsetof(SlotHeader, dropped) == 64);

std::string text_of(std::uint64_t magic) {
  char text[sizeof(magic)];
  std::memcpy(text, &magic, sizeof(magic));
  return text;
}

TEST(Format, FilesBeginWithTheirNames) {
  EXPECT_EQ(text_of(node_magic), "CKPTNE1");
  EXPECT_EQ(text_of(control_magic), "CKPTNT1");
  EXPECT_EQ(text_of(segment_magic), "CKPTNG1");
}

}  // namespace
}  // namespace ckpt::arena
