#include "agent/transfers/coding_job.hpp"

#include <gtest/gtest.h>

#include "core/lists.hpp"
#include "parity_group.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using core::NodeId;
using net::FetchEnd;
using net::FetchPart;
using net::PieceName;
using testing::Fate;
using testing::leaf;
using testing::ParityGroup;
using Name = ParityGroup::Name;

constexpr std::size_t mib = 1u << 20;
constexpr NodeId spare = 50;  // a node besides the members

Name shard_of(std::uint32_t member) { return {member, false}; }
Name parity_of(std::uint32_t member) { return {member, true}; }

// xor(3) of some MiB: two segments each, several chunks to a segment.
std::vector<std::size_t> long_lengths() { return {4 * mib + 5, 5 * mib + leaf + 77, 3 * mib + 4 * leaf}; }

// Byte by byte, by the definition of the code.
std::vector<std::byte> parity_by_definition(const ParityGroup& group, std::uint32_t member) {
  const auto layout = core::layout_of(group.parity_manifest);
  std::vector<std::byte> parity(layout.parity_bytes_of(member));
  for (std::uint32_t row = 0; row < layout.parity(); ++row) {
    const std::uint32_t stripe = layout.stripe_of_row(member, row);
    for (std::uint32_t column = 0; column < layout.columns(); ++column) {
      const std::uint32_t from = layout.member_at(stripe, column);
      const auto range = layout.segment(from, column);
      const auto& data = group.shards[from].data;
      const std::uint8_t factor = kernels::ErasureCode::coefficient(row, column);
      for (std::uint64_t i = 0; i < range.size_bytes && range.first_byte + i < data.size(); ++i) {
        const auto byte = static_cast<std::uint8_t>(data[range.first_byte + i]);
        parity[layout.row_offset(member, row) + i] ^= std::byte{kernels::gf256::multiply(factor, byte)};
      }
    }
  }
  return parity;
}

void expect_nothing_made(ParityGroup& group, Name name) {
  EXPECT_FALSE(group.is_sealed(name));
  EXPECT_TRUE(group.is_quiet());
}

bool names(const CodingJob::Outcome& outcome, NodeId node, const std::string& shard) {
  return outcome.damaged.size() == 1 && outcome.damaged[0].node == node && outcome.damaged[0].shard == shard;
}

// ---- What is made ----

TEST(CodingJob, ParityMatchesItsDefinition) {
  for (const std::uint32_t rows : {1u, 2u, 3u}) {
    ParityGroup group({3 * leaf + 1, 0, 5 * leaf, 777, 4 * leaf + 99}, rows);
    group.encode();
    for (std::uint32_t m = 0; m < group.members(); ++m) {
      const auto made = group.made(parity_of(m));
      EXPECT_EQ(made.data, parity_by_definition(group, m)) << rows << " rows, member " << m;
      EXPECT_EQ(piece_info(made.manifest).parity_manifest, group.info(parity_of(m)).parity_manifest);
    }
  }
}

TEST(CodingJob, DecodesLongPiecesFromChunksInAnyNumberOfParts) {
  for (const bool immediate : {true, false}) {
    for (const std::size_t chunk_bytes : {50'001ul, 2 * mib}) {
      ParityGroup group(long_lengths(), 1, chunk_bytes, immediate);
      group.encode();
      for (std::uint32_t m = 0; m < group.members(); ++m) {
        EXPECT_EQ(group.made(parity_of(m)).data, parity_by_definition(group, m));
        for (const Name name : {shard_of(m), parity_of(m)}) group.lose(name);
        for (const Name name : {shard_of(m), parity_of(m)}) {
          EXPECT_EQ(group.make(name).result, FetchResult::complete);
          EXPECT_TRUE(group.is_made_again(name));
        }
        for (const Name name : {shard_of(m), parity_of(m)}) group.put(name);
      }
      EXPECT_TRUE(group.is_quiet());
    }
  }
}

TEST(CodingJob, EncodesAGroupOfEmptyShards) {
  ParityGroup group({0, 0, 0}, 2);
  group.encode();
  group.lose(shard_of(1));
  EXPECT_EQ(group.make(shard_of(1)).result, FetchResult::complete);
  EXPECT_TRUE(group.is_made_again(shard_of(1)));
}

TEST(CodingJob, NeverUsesThePieceAsItsOwnSource) {
  ParityGroup group({2 * leaf, 2 * leaf, 2 * leaf}, 1);
  group.encode();
  for (const Name name : {shard_of(1), parity_of(1)}) {
    group.put(name, spare);  // and still at its member
    EXPECT_EQ(group.make(name).result, FetchResult::complete);
    EXPECT_TRUE(group.is_made_again(name));
  }
}

TEST(CodingJob, FetchesOnlyTheBytesThatItNeedsAndLacks) {
  ParityGroup group({4 * leaf, 4 * leaf, 4 * leaf, 4 * leaf}, 2);
  group.encode();
  group.lose(parity_of(2));
  const std::uint64_t before = group.network.bytes_sent();
  EXPECT_EQ(group.make(parity_of(2)).result, FetchResult::complete);
  EXPECT_EQ(group.network.bytes_sent() - before, 2 * 2 * 2 * leaf);  // rows, sources of each, a segment
  for (const auto& source : group.sources()) {
    const auto piece = *core::group_piece(group.parity_manifest, source.shard);
    if (piece.member != 2 || piece.is_parity) group.put({piece.member, piece.is_parity}, 2);
  }
  const std::size_t fetches = group.network.fetches();
  EXPECT_EQ(group.make(parity_of(2)).result, FetchResult::complete);
  EXPECT_TRUE(group.is_made_again(parity_of(2)));
  EXPECT_EQ(group.network.fetches(), fetches);
}

// ---- Damage ----

TEST(CodingJob, ReportsDamageInTransit) {
  ParityGroup group(long_lengths(), 1, 300'000, false);
  group.encode();
  group.lose(shard_of(0));
  const auto parity = group.info(parity_of(1)).shard, shard = group.info(shard_of(2)).shard;
  for (const std::string& struck : {parity, shard}) {
    for (const std::size_t which : {0u, 1u}) {
      for (const std::size_t wrong_byte : {0ul, leaf - 1, leaf + 17}) {
        std::atomic<std::size_t> seen{0};
        group.network.rule([&](NodeId, const PieceName& piece, const FetchPart& part) {
          const bool is_struck = piece.shard == struck && !part.manifest && seen++ == which;
          return is_struck ? Fate{.wrong_byte = wrong_byte} : Fate{};
        });
        const auto outcome = group.make(shard_of(0));
        EXPECT_EQ(outcome.result, FetchResult::corrupt);
        EXPECT_TRUE(names(outcome, struck == parity ? 1 : 2, struck));
        expect_nothing_made(group, shard_of(0));
      }
    }
  }
  group.network.rule(nullptr);
  EXPECT_EQ(group.make(shard_of(0)).result, FetchResult::complete);
  EXPECT_TRUE(group.is_made_again(shard_of(0)));
}

TEST(CodingJob, ReportsDamagedLocalAndRemotePieces) {
  ParityGroup group({6 * leaf + 5, 6 * leaf, 6 * leaf}, 1);
  group.encode();
  group.lose(shard_of(0));
  group.put(parity_of(2), 0);  // read where it lies
  group.lose(parity_of(2), 2);
  struct Case {
    Name name;
    NodeId node;
    std::size_t byte;  // of what is read
  };
  for (const auto& [name, node, byte] : {Case{shard_of(1), 1, 4 * leaf + 3}, Case{shard_of(2), 2, leaf + 3},
                                         Case{parity_of(1), 1, leaf}, Case{parity_of(2), 0, leaf + 3}}) {
    group.spoil(name, byte);
    const auto outcome = group.make(shard_of(0));
    EXPECT_EQ(outcome.result, FetchResult::corrupt);
    EXPECT_TRUE(names(outcome, node, group.info(name).shard));
    expect_nothing_made(group, shard_of(0));
    group.spoil(name, byte);
  }
  EXPECT_EQ(group.make(shard_of(0)).result, FetchResult::complete);
}

TEST(CodingJob, ReportsADamagedManifest) {
  ParityGroup group({2 * leaf, 2 * leaf, 2 * leaf}, 1);
  const auto first = group.info(shard_of(1)).shard;
  group.network.rule([&](NodeId, const PieceName& piece, const FetchPart& part) {
    return piece.shard == first && part.manifest ? Fate{.wrong_byte = 60} : Fate{};
  });
  auto outcome = group.make(parity_of(0));
  EXPECT_EQ(outcome.result, FetchResult::corrupt);
  EXPECT_TRUE(names(outcome, 1, first));
  expect_nothing_made(group, parity_of(0));
  group.put(shard_of(1), spare);
  group.network.rule([&](NodeId from, const PieceName& piece, const FetchPart& part) {
    return from == 1 && piece.shard == first && part.manifest ? Fate{.wrong_byte = 60} : Fate{};
  });
  outcome = group.make(parity_of(0));
  EXPECT_EQ(outcome.result, FetchResult::complete);
  EXPECT_TRUE(names(outcome, 1, first));
  EXPECT_EQ(group.made(parity_of(0)).data, parity_by_definition(group, 0));
}

// Parity that its own digests fit, and that is not the sum of the shards: only what it gives shows it.
TEST(CodingJob, RefusesTheResultOfParityThatWasWrongFromTheStart) {
  ParityGroup group({5 * leaf + 3, 5 * leaf, 5 * leaf}, 1);
  group.encode();
  for (const std::size_t byte : {std::size_t{0}, 2 * leaf + 1}) {
    auto wrong = group.made(parity_of(1));
    wrong.data[byte] ^= std::byte{1};
    kernels::digest_leaves(wrong.data.data(), wrong.data.size(), wrong.manifest.leaves.data());
    wrong.manifest.root_digest = kernels::root_digest(wrong.manifest.leaves, wrong.data.size());
    write_piece(group.segment(parity_of(1))->writable_slot(0), wrong);
    group.put(parity_of(1));
    group.lose(shard_of(0));
    const auto outcome = group.make(shard_of(0));
    EXPECT_EQ(outcome.result, FetchResult::corrupt) << byte;
    EXPECT_TRUE(outcome.damaged.empty());
    const PieceRef source{1, group.info(parity_of(1)).shard};
    EXPECT_TRUE(core::contains(outcome.wrong, source));
    EXPECT_TRUE(core::contains(outcome.unusable, source));
    expect_nothing_made(group, shard_of(0));
  }
}

// Any of them may be the one: only a single one is convicted by what comes of it.
TEST(CodingJob, BlamesNoneOfSeveralParityPiecesForAWrongResult) {
  ParityGroup group({5 * leaf, 5 * leaf, 5 * leaf, 5 * leaf}, 2);
  group.encode();
  auto wrong = group.made(parity_of(1));
  for (std::size_t byte = 0; byte < wrong.data.size(); byte += leaf) wrong.data[byte] ^= std::byte{1};
  kernels::digest_leaves(wrong.data.data(), wrong.data.size(), wrong.manifest.leaves.data());
  wrong.manifest.root_digest = kernels::root_digest(wrong.manifest.leaves, wrong.data.size());
  write_piece(group.segment(parity_of(1))->writable_slot(0), wrong);
  group.put(parity_of(1));
  group.lose(shard_of(0));
  group.lose(shard_of(3));
  group.lose(parity_of(3));
  const auto outcome = group.make(shard_of(0));
  EXPECT_EQ(outcome.result, FetchResult::corrupt);
  EXPECT_TRUE(outcome.wrong.empty());
  EXPECT_EQ(outcome.suspects.size(), 2u);
  const auto is_wrong_one = [&](const auto& source) { return source.shard == group.info(parity_of(1)).shard; };
  EXPECT_TRUE(std::any_of(outcome.suspects.begin(), outcome.suspects.end(), is_wrong_one));
  expect_nothing_made(group, shard_of(0));
}

// A shard and a parity of the same names and checkpoint, as another incarnation of the job may have left them: not what
// the parity manifest says.
TEST(CodingJob, IgnoresPiecesOfTheSameNameWithOtherBytes) {
  const std::vector<std::size_t> lengths{2 * leaf + 1, 2 * leaf, 2 * leaf};
  ParityGroup group(lengths, 1);
  group.encode();
  auto other = testing::make_piece(group.info(shard_of(1)).shard, ParityGroup::checkpoint, 2 * leaf, 2);
  other.data[5] ^= std::byte{1};
  kernels::digest_leaves(other.data.data(), other.data.size(), other.manifest.leaves.data());
  other.manifest.root_digest = kernels::root_digest(other.manifest.leaves, other.data.size());
  for (const NodeId node : {0u, 1u}) {  // here, or where it is fetched from
    group.lose(parity_of(0));
    for (std::uint32_t m = 1; m < 3; ++m) group.lose(parity_of(m));
    group.lose(shard_of(1));
    write_piece(group.segment(shard_of(1))->writable_slot(0), other);
    group.put(shard_of(1), node);
    const auto outcome = group.make(parity_of(0));
    EXPECT_EQ(outcome.result, node == 0 ? FetchResult::failed : FetchResult::corrupt);
    EXPECT_EQ(outcome.damaged.size(), node == 0 ? 0u : 1u);
    expect_nothing_made(group, parity_of(0));
    group.lose(shard_of(1), node);
  }
}

TEST(CodingJob, KeepsTheSlotsOldPieceUntilTheFirstChunk) {
  ParityGroup group({2 * leaf, 2 * leaf, 2 * leaf}, 1);
  const Name name = parity_of(0);
  const auto before = testing::make_piece(group.info(name).shard, {1, 1}, 100);
  write_piece(group.segment(name)->writable_slot(1), before);
  for (const bool manifests : {true, false}) {
    group.network.rule([&](NodeId, const PieceName&, const FetchPart& part) {
      return part.manifest == manifests ? Fate{.end = FetchEnd::peer_failed} : Fate{};
    });
    group.begin(name, group.segment(name));
    EXPECT_EQ(group.outcomes.take().result, FetchResult::failed);
    EXPECT_EQ(group.is_sealed(name), manifests);
  }
}

// An order that contradicts itself writes nowhere.
TEST(CodingJob, RefusesAnOrderThatContradictsItsGroup) {
  ParityGroup group({3 * leaf, 2 * leaf, 2 * leaf, 0}, 2);
  group.encode();
  for (const Name name : {shard_of(0), parity_of(0), shard_of(3)}) {
    std::vector<core::PieceInfo> others(4, group.info(name));
    others[0].length_bytes += leaf;
    others[1].length_bytes = 10;
    others[2].shard += "?";
    if (name.is_parity)
      others[3].parity_manifest.sources[1].root_digest += 1;
    else
      others[3].root_digest += 1;
    group.lose(name);
    for (const auto& other : others) {
      group.segment(name)->writable_slot(1).begin();
      const std::size_t fetches = group.network.fetches();
      group.begin(name, group.segment(name), other);
      EXPECT_EQ(group.outcomes.take().result, FetchResult::failed);
      EXPECT_EQ(group.network.fetches(), fetches);
      expect_nothing_made(group, name);
    }
    group.put(name);
  }
}

TEST(CodingJob, MakesADroppedCheckpointAgainInItsSlot) {
  ParityGroup group({2 * leaf, 2 * leaf}, 1);
  group.encode();
  const Name name = parity_of(0);
  group.segment(name)->writable_slot(1).drop(ParityGroup::checkpoint);
  ASSERT_FALSE(group.is_sealed(name));
  EXPECT_EQ(group.make(name).result, FetchResult::complete);
  EXPECT_TRUE(group.is_made_again(name));
}

// It releases its sources when it ends, not when it is destroyed: the slot of a dropped piece is needed.
TEST(CodingJob, UnpinsItsSourcesWhenItEnds) {
  ParityGroup group({2 * leaf, 2 * leaf, 2 * leaf}, 1);
  bool is_released = false;
  group.put(shard_of(1), 0);
  const auto made = group.begin(parity_of(0));
  ASSERT_EQ(group.outcomes.take().result, FetchResult::complete);
  group.network.index(0).drop({core::held_rank, group.info(shard_of(1)).shard, 0}, [&] { is_released = true; });
  EXPECT_TRUE(is_released);
}

// ---- Failing ----

class Failing : public ::testing::TestWithParam<bool> {
 protected:
  ParityGroup group_{long_lengths(), 1, 300'000, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(CodingJob, Failing, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "AtOnce" : "OnAThread"; });

TEST_P(Failing, JobFailsIfEveryFetchFails) {
  for (const FetchEnd end : {FetchEnd::refused, FetchEnd::not_there, FetchEnd::timed_out, FetchEnd::peer_failed}) {
    group_.network.rule([end](NodeId, const PieceName&, const FetchPart&) { return Fate{.end = end}; });
    EXPECT_EQ(group_.make(parity_of(0)).result, FetchResult::failed);
    expect_nothing_made(group_, parity_of(0));
  }
}

TEST_P(Failing, JobFailsIfAChunkFailsAndNoOtherNodeHasThePiece) {
  const auto shard = group_.info(shard_of(1)).shard;
  for (std::size_t which = 0; which < 3; ++which) {
    std::atomic<std::size_t> seen{0};
    group_.network.rule([&](NodeId, const PieceName& piece, const FetchPart& part) {
      const bool fails = piece.shard == shard && !part.manifest && seen++ == which;
      return fails ? Fate{.end = FetchEnd::peer_failed} : Fate{};
    });
    const auto outcome = group_.make(parity_of(0));
    EXPECT_EQ(outcome.result, FetchResult::failed);
    EXPECT_TRUE(outcome.damaged.empty());
    expect_nothing_made(group_, parity_of(0));
  }
}

TEST_P(Failing, FetchesFromAnotherNodeThatHasThePiece) {
  group_.encode();
  group_.lose(shard_of(0));
  for (std::uint32_t m = 1; m < 3; ++m) {
    group_.put(shard_of(m), spare);
    group_.put(parity_of(m), spare);
  }
  for (const FetchEnd end : {FetchEnd::timed_out, FetchEnd::peer_failed}) {
    group_.network.rule(
        [end](NodeId from, const PieceName&, const FetchPart&) { return from == spare ? Fate{} : Fate{.end = end}; });
    EXPECT_EQ(group_.make(shard_of(0)).result, FetchResult::complete);
    EXPECT_TRUE(group_.is_made_again(shard_of(0)));
    EXPECT_TRUE(group_.is_quiet());
  }
}

TEST_P(Failing, JobFailsIfItsSourceDroppedThePiece) {
  const auto shard = group_.info(shard_of(2)).shard;
  group_.network.index(2).drop({core::held_rank, shard, 0}, [] {});
  EXPECT_EQ(group_.make(parity_of(0)).result, FetchResult::failed);
  expect_nothing_made(group_, parity_of(0));
}

// In bytes, and in the manifests that parity keeps.
TEST(CodingJob, RefusesASlotThatIsTooSmall) {
  ParityGroup group(std::vector<std::size_t>(40, 3 * leaf), 1);
  const auto piece = group.info(parity_of(0));
  test::TemporaryDirectory directory{test::in_memory};
  arena::NodeArena arena(directory.path() + "/node", "job", "node");
  auto spec = testing::segment_spec(core::held_rank, piece.shard, piece.length_bytes, 2);
  spec.manifest_capacity_bytes = arena::manifest_bytes(piece.length_bytes, encoded_bytes(piece.parity_manifest));
  for (const auto& [data_bytes, manifest_bytes] :
       {std::pair(piece.length_bytes - 1, spec.manifest_capacity_bytes), {piece.length_bytes, 4096}}) {
    auto small = spec;
    small.shard += std::to_string(data_bytes);
    small.data_capacity_bytes = data_bytes / 4096 * 4096;
    small.manifest_capacity_bytes = manifest_bytes;
    const auto segment = std::make_shared<arena::Segment>(arena.create_segment(small, 1));
    group.begin(parity_of(0), segment);
    EXPECT_EQ(group.outcomes.take().result, FetchResult::no_space);
    EXPECT_FALSE(segment->slot(1).checkpoint());
    EXPECT_TRUE(group.is_quiet());
  }
}

// ---- Cancelling ----

TEST_P(Failing, CancelledJobEndsOnceMakesNothingAndStopsFetching) {
  for (const bool during_manifests : {true, false}) {
    group_.network.rule([&](NodeId, const PieceName&, const FetchPart& part) {
      return Fate{.is_held = part.manifest == during_manifests};
    });
    const auto made = group_.begin(parity_of(0));
    ASSERT_TRUE(testing::eventually([&] { return group_.network.held() >= 2; }));
    group_.network.drain();
    group_.pool.drain();
    made->cancel();
    EXPECT_TRUE(group_.outcomes.empty());  // the transport still has its buffers
    const std::size_t fetches = group_.network.fetches();
    group_.network.release();
    EXPECT_EQ(group_.outcomes.take().result, FetchResult::failed);
    EXPECT_EQ(group_.network.fetches(), fetches);
    expect_nothing_made(group_, parity_of(0));
  }
}

TEST_P(Failing, JobCancelledWhileWaitingForBuffersStopsFetching) {
  std::vector<ChunkBuffers::Buffer> all;
  group_.buffers.ask(ChunkBuffers::count, [&](auto buffers) { all = std::move(buffers); });
  const auto made = group_.begin(parity_of(0));
  group_.network.drain();
  group_.pool.drain();
  group_.network.drain();
  const std::size_t fetches = group_.network.fetches();
  made->cancel();
  group_.buffers.give_back(std::move(all));
  EXPECT_EQ(group_.outcomes.take().result, FetchResult::failed);
  EXPECT_EQ(group_.network.fetches(), fetches);
  expect_nothing_made(group_, parity_of(0));
}

TEST_P(Failing, CancellingAFinishedJobKeepsItsPiece) {
  const auto made = group_.begin(parity_of(0));
  EXPECT_EQ(group_.outcomes.take().result, FetchResult::complete);
  made->cancel();
  EXPECT_TRUE(group_.is_sealed(parity_of(0)));
  EXPECT_TRUE(group_.is_quiet());
}

TEST_P(Failing, ManyConcurrentJobsShareTheBuffersAndAllEnd) {
  group_.encode();
  constexpr std::size_t times = 8;
  for (std::size_t i = 0; i < times; ++i) {
    for (std::uint32_t m = 0; m < 3; ++m) {
      // The same slots again: nobody writes into one while another does.
      group_.begin(parity_of(m));
    }
    for (std::uint32_t m = 0; m < 3; ++m) EXPECT_EQ(group_.outcomes.take().result, FetchResult::complete);
    for (std::uint32_t m = 0; m < 3; ++m) EXPECT_TRUE(group_.is_made_again(parity_of(m)));
  }
  EXPECT_TRUE(group_.is_quiet());
}

}  // namespace
}  // namespace ckpt::agent
