// A node that sends on a piece while it still receives the piece itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "net_support.hpp"

namespace ckpt::net::testing::arriving {
namespace {

constexpr std::size_t chunk = 512u << 10;  // the largest for a node that restores
constexpr std::size_t piece_bytes = 4 * chunk + 4321;
constexpr std::size_t given_up = SIZE_MAX;
const PieceName name{"layers", 9};
const FetchPart urgent{.urgent = true};

TransportOptions impatient_options(PeerId node, std::uint64_t instance, const std::string& transport) {
  TransportOptions options = loopback_options(node, instance, transport);
  options.progress_timeout_ms = 600;
  return options;
}

class ArrivingPieceOverEachTransport : public ::testing::TestWithParam<const char*> {
 protected:
  ArrivingPieceOverEachTransport() : one_(impatient_options(1, 100, GetParam())) {
    Transport::Handlers handlers;
    handlers.serve = [this](const Asker& asker, const PieceName&) -> std::optional<ServedPiece> {
      asked_by_ = asker.node;
      asked_in_chain_ = asker.chain;
      asked_.fetch_add(1);
      while (hangs_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ServedPiece coming;
      coming.is_coming = true;
      if (!is_here_) return is_coming_ ? std::optional(coming) : std::nullopt;
      return ServedPiece{{}, piece_, nullptr, [this]() -> std::optional<std::size_t> {
                           if (tries_in_vain_ && looks_++ % 2 == 0) return std::nullopt;
                           const std::size_t ready = ready_bytes_;
                           return ready == given_up ? std::nullopt : std::optional(ready);
                         }};
    };
    source_ = Transport::create(impatient_options(2, 200, GetParam()), std::move(handlers));
    one_.transport->set_peer(2, 200, source_->address());
  }
  ~ArrivingPieceOverEachTransport() override { hangs_ = false; }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  }
  void wait_until_asked() const {
    ASSERT_TRUE(eventually([&] { return asked_ != 0; }));
  }

  const std::vector<std::byte> piece_ = pattern(piece_bytes, 1);
  std::atomic<bool> is_here_ = true;
  std::atomic<bool> is_coming_ = false;
  std::atomic<bool> hangs_ = false;
  std::atomic<bool> tries_in_vain_ = false;
  std::atomic<int> looks_ = 0;
  std::atomic<std::size_t> ready_bytes_ = 0;
  std::atomic<int> asked_ = 0;
  std::atomic<PeerId> asked_by_ = 0;
  std::atomic<std::uint64_t> asked_in_chain_ = 0;
  Node one_;
  std::unique_ptr<Transport> source_;
};
INSTANTIATE_TEST_SUITE_P(, ArrivingPieceOverEachTransport, ::testing::Values("tcp", "shm"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(ArrivingPieceOverEachTransport, SendsChunksExactlyWhenTheyAreReady) {
  ready_bytes_ = 2 * chunk + 1;
  const auto sink = one_.fetch(2, name, urgent);
  ASSERT_EQ(sink->arrivals.wait_for(2).size(), 2u);
  // The source has looked at all requests again when it has served another one.
  ASSERT_EQ(one_.fetch(2, name, FetchPart{.size_bytes = chunk, .urgent = true})->end(), FetchEnd::complete);
  EXPECT_EQ(sink->arrivals.count(), 2u) << "a part of the third chunk is ready, not all of it";
  ready_bytes_ = 3 * chunk;
  EXPECT_EQ(sink->arrivals.wait_for(3).size(), 3u);
  EXPECT_EQ(sink->ends.count(), 0u);
  ready_bytes_ = piece_bytes;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == piece_);
}

TEST_P(ArrivingPieceOverEachTransport, SourceLearnsTheAskerAndItsChain) {
  ready_bytes_ = piece_bytes;
  EXPECT_EQ(one_.fetch(2, name, FetchPart{.urgent = true, .chain = 7})->end(), FetchEnd::complete);
  EXPECT_EQ(asked_by_, 1u);
  EXPECT_EQ(asked_in_chain_, 7u);
  EXPECT_EQ(one_.fetch(2, name, urgent)->end(), FetchEnd::complete);
  EXPECT_EQ(asked_in_chain_, no_chain);
}

TEST_P(ArrivingPieceOverEachTransport, AskerLearnsThatThePieceWillNotComplete) {
  for (const FetchPart& part : {urgent, FetchPart{.size_bytes = piece_bytes - 1, .urgent = true}}) {
    ready_bytes_ = 2 * chunk;
    const auto sink = one_.fetch(2, name, part);
    ASSERT_FALSE(sink->arrivals.wait_for(1).empty());
    ready_bytes_ = given_up;
    EXPECT_EQ(sink->end(), FetchEnd::not_there);
  }
}

TEST_P(ArrivingPieceOverEachTransport, RestoreContinuesIfItsSourceGetsTheRestElsewhere) {
  ready_bytes_ = chunk;
  const auto sink = one_.fetch(2, name, urgent);
  ASSERT_EQ(sink->arrivals.wait_for(1).size(), 1u);
  const int asked = asked_;
  ready_bytes_ = given_up;
  EXPECT_TRUE(eventually([&] { return asked_ > asked; })) << "the source looks for the piece again";
  EXPECT_EQ(sink->ends.count(), 0u);
  ready_bytes_ = piece_bytes;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == piece_);
}

TEST_P(ArrivingPieceOverEachTransport, RestoreDoesNotWaitForASourceWithoutProgress) {
  ready_bytes_ = chunk;
  const auto sink = one_.fetch(2, name, urgent);
  ASSERT_EQ(sink->arrivals.wait_for(1).size(), 1u);
  tries_in_vain_ = true;
  EXPECT_EQ(sink->end(), FetchEnd::not_there);
}

TEST_P(ArrivingPieceOverEachTransport, RangeWaitsOnlyForItsOwnBytes) {
  ready_bytes_ = 3 * chunk;
  const auto sink = one_.fetch(2, name, FetchPart{.first_byte = chunk, .size_bytes = 2 * chunk, .urgent = true});
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(std::equal(sink->data.begin(), sink->data.end(), piece_.begin() + chunk));
}

TEST_P(ArrivingPieceOverEachTransport, UrgentRequestWaitsForAPieceAboutToArrive) {
  is_here_ = false;
  ready_bytes_ = piece_bytes;
  const auto sink = one_.fetch(2, name, urgent);
  wait_until_asked();
  is_here_ = true;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
}

TEST_P(ArrivingPieceOverEachTransport, NoRequestWaitsForeverForAMissingPiece) {
  is_here_ = false;
  EXPECT_EQ(one_.fetch(2, name, FetchPart{})->end(), FetchEnd::not_there);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(one_.fetch(2, name, urgent)->end(), FetchEnd::not_there);
}

// ---- The source says that the piece is coming ----

TEST_P(ArrivingPieceOverEachTransport, ARequestToRestoreWaitsForAPieceThatIsComing) {
  is_here_ = false;
  is_coming_ = true;
  ready_bytes_ = piece_bytes;
  const auto sink = one_.fetch(2, name, urgent);
  // The source asks once in a millisecond at most, so this takes longer than the wait for a piece that is not coming.
  ASSERT_TRUE(eventually([&] { return asked_ > 1200; }));
  EXPECT_EQ(sink->ends.count(), 0u);
  is_here_ = true;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == piece_);
}

TEST_P(ArrivingPieceOverEachTransport, OtherRequestsDoNotWaitForAPieceThatIsComing) {
  is_here_ = false;
  is_coming_ = true;
  EXPECT_EQ(one_.fetch(2, name, FetchPart{})->end(), FetchEnd::not_there);
  EXPECT_EQ(one_.fetch(2, name, FetchPart{.first_byte = 5, .size_bytes = 10, .urgent = true})->end(),
            FetchEnd::not_there);
}

TEST_P(ArrivingPieceOverEachTransport, ARequestEndsIfItsPieceIsNoLongerComing) {
  is_here_ = false;
  is_coming_ = true;
  const auto sink = one_.fetch(2, name, urgent);
  wait_until_asked();
  EXPECT_EQ(sink->ends.count(), 0u);
  is_coming_ = false;
  EXPECT_EQ(sink->end(), FetchEnd::not_there);
}

TEST_P(ArrivingPieceOverEachTransport, ARequestEndsIfTheSourceOfItsComingPieceEnds) {
  is_here_ = false;
  is_coming_ = true;
  const auto sink = one_.fetch(2, name, urgent);
  wait_until_asked();
  EXPECT_EQ(sink->ends.count(), 0u);
  source_.reset();
  EXPECT_EQ(sink->end(), FetchEnd::peer_failed);
}

TEST_P(ArrivingPieceOverEachTransport, ARequestEndsIfTheSourceOfItsComingPieceStops) {
  is_here_ = false;
  is_coming_ = true;
  const auto sink = one_.fetch(2, name, urgent);
  wait_until_asked();
  hangs_ = true;
  EXPECT_EQ(sink->end(), FetchEnd::timed_out);
}

// ---- Several pieces at once ----

class NamedSink : public MemorySink {
 public:
  NamedSink(char letter, Mailbox<char>& arrived) : letter_(letter), arrived_(arrived) {}
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    arrived_.put(letter_);
    MemorySink::received(offset_bytes, size_bytes);
  }

 private:
  const char letter_;
  Mailbox<char>& arrived_;
};

// The source begins to send when it has been asked for all pieces.
TEST_P(ArrivingPieceOverEachTransport, PiecesForOneRestoringNodeArriveInTurn) {
  constexpr std::size_t chunks = 20;  // more than may be under way
  const std::vector<std::byte> data = pattern(chunks * chunk, 1);
  std::set<std::string> asked;  // only used on the source's thread
  Transport::Handlers handlers;
  handlers.serve = [&](const Asker&, const PieceName& piece) -> std::optional<ServedPiece> {
    asked.insert(piece.shard);
    ServedPiece coming;
    coming.is_coming = true;
    return asked.size() < 3 ? coming : ServedPiece{{}, data, nullptr};
  };
  const auto source = Transport::create(impatient_options(3, 300, GetParam()), std::move(handlers));
  one_.transport->set_peer(3, 300, source->address());
  Mailbox<char> arrived;
  std::vector<std::shared_ptr<NamedSink>> sinks;
  for (const char shard : {'a', 'b', 'c'}) {
    sinks.push_back(std::make_shared<NamedSink>(shard, arrived));
    one_.transport->fetch(3, {{shard}, 9}, urgent, sinks.back(), 25000);
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->end(), FetchEnd::complete);
  auto order = arrived.wait_for(0);
  EXPECT_EQ(order.size(), 3 * chunks) << "chunks are small";
  const std::string letters(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  EXPECT_EQ(order.size(), 3u) << letters;
}

}  // namespace
}  // namespace ckpt::net::testing::arriving
