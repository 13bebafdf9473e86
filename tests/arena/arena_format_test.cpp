// The offsets that docs/formats.md gives.

#include "arena/arena_format.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace ckpt::arena {
namespace {

static_assert(offsetof(ReceiveBufferHeader, magic) == 0 && offsetof(ReceiveBufferHeader, format) == 8 &&
              offsetof(ReceiveBufferHeader, places) == 12 && offsetof(ReceiveBufferHeader, capacity_bytes) == 16 &&
              offsetof(ReceiveBufferHeader, incarnation) == 272 && offsetof(ReceiveBufferHeader, member) == 280 &&
              offsetof(ReceiveBufferHeader, ready) == 288 && offsetof(ReceiveBufferHeader, place) == 320 &&
              sizeof(ReceiveBufferHeader::Place) == 64 && offsetof(ReceiveBufferHeader::Place, checkpoint) == 0 &&
              offsetof(ReceiveBufferHeader::Place, gpu_received_bytes) == 8);
static_assert(offsetof(ReplicationWords, own) == 0 && offsetof(ReplicationWords::ReplicationSlot, sequence) == 0 &&
              offsetof(ReplicationWords::ReplicationSlot, words) == 8 &&
              sizeof(ReplicationWords::ReplicationSlot) == 192 && offsetof(ReplicationWords, has_failed) == 192 &&
              offsetof(ReplicationWords, failure) == 200 && offsetof(ReplicationWords, taken) == 448 &&
              offsetof(ReplicationWords, members) == 704 && replication_words_bytes == 8192);
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
              offsetof(RankControl, agent_doorbell) == 120 && offsetof(RankControl, used_grant) == 128 &&
              offsetof(RankControl, attempted) == 136 && offsetof(RankControl, capturing) == 144 &&
              offsetof(RankControl, trainer_doorbell) == 152 && offsetof(RankControl, not_taken) == 160 &&
              offsetof(RankControl, used_spare) == 168 && offsetof(RankControl, health) == 192 &&
              offsetof(HealthWords, heartbeats) == 0 && offsetof(HealthWords, sequence) == 8 &&
              offsetof(HealthWords, words) == 16 && offsetof(RankControl, stored) == 1600 &&
              offsetof(RankControl, halt_at) == 1608 && offsetof(RankControl, halt) == 1616 &&
              offsetof(RankControl, answered) == 1664 && offsetof(RankControl, freeze) == 1672 &&
              offsetof(RankControl, bubble_bytes) == 1728 && offsetof(RankControl, compute_bytes) == 1736 &&
              offsetof(RankControl, update_bytes) == 1744 && offsetof(RankControl, layered) == 1752 &&
              offsetof(RankControl, layered_late) == 1760);
static_assert(offsetof(CommWords, written) == 0 && offsetof(CommWords, channels) == 64 &&
              sizeof(CommWords::Channel) == 8 && offsetof(CommWords::Channel, begun) == 0 &&
              offsetof(CommWords::Channel, ended) == 4 && offsetof(CommWords, events) == 128 &&
              offsetof(CommWords, on_gpu) == 32'896 && offsetof(CommWords, pauses) == 41'088 &&
              offsetof(CommWords::Pauses, begun) == 0 && offsetof(CommWords::Pauses, ended) == 4 &&
              offsetof(CommWords::Pauses, name) == 8 && offsetof(CommWords, offered) == 41'152 &&
              offsetof(CommWords, bubbles_on_gpu) == 41'216 && sizeof(CommWords) == 41'280 &&
              control_file_bytes == 49'152);
static_assert(format_version == 4 && control_format_version == 8 && node_format_version == 4);
static_assert(offsetof(SegmentHeader, magic) == 0 && offsetof(SegmentHeader, format) == 8 &&
              offsetof(SegmentHeader, kind) == 12 && offsetof(SegmentHeader, rank) == 16 &&
              offsetof(SegmentHeader, slots_max) == 20 && offsetof(SegmentHeader, data_capacity_bytes) == 24 &&
              offsetof(SegmentHeader, manifest_capacity_bytes) == 32 && offsetof(SegmentHeader, shard) == 40 &&
              offsetof(SegmentHeader, ready) == 320 && offsetof(SegmentHeader, slots_reserved) == 328);
static_assert(offsetof(SlotHeader, seal) == 0 && offsetof(SlotHeader, checkpoint) == 8 &&
              offsetof(SlotHeader, length_bytes) == 16 && offsetof(SlotHeader, root_digest) == 24 &&
              offsetof(SlotHeader, layout_bytes) == 32 && offsetof(SlotHeader, layout_hash) == 40 &&
              offsetof(SlotHeader, world_size) == 48 && offsetof(SlotHeader, dropped) == 64 &&
              offsetof(SlotHeader, record_seal) == 128 && offsetof(SlotHeader, record_bytes) == 136 &&
              offsetof(SlotHeader, arrival) == 192 && offsetof(SlotHeader, arrived_bytes) == 200 &&
              offsetof(SlotHeader, arrival_doorbell) == 208);
static_assert(segment_format_version == 6);

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
