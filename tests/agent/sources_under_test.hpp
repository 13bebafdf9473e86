// Puts all replica sources behind one interface, so that one test checks each of them. Each has one piece to fetch, and
// a test can make that fetch go wrong.
#pragma once

#include <fcntl.h>

#include <condition_variable>

#include "agent/transfers/coding_source.hpp"
#include "agent/transfers/peer_source.hpp"
#include "agent/transfers/storage_reader.hpp"
#include "gpu_replication/gpu_source.hpp"
#include "parity_group.hpp"

namespace ckpt::agent::testing {

using core::FetchResult;

constexpr std::size_t length_bytes = 20 * leaf + 1234;
constexpr CheckpointId checkpoint{5, 70};
constexpr core::NodeId own_node = 10, owner = 11;

enum class Mishap { none, damage, loss, silence };

// A replica source that has one piece to fetch. strike() makes something go wrong.
class SourceUnderTest {
 public:
  virtual ~SourceUnderTest() = default;
  virtual ReplicaSource& source() = 0;
  virtual core::StartFetch order() const = 0;
  virtual std::shared_ptr<arena::Segment> segment() const = 0;
  virtual const Piece& piece() const = 0;
  virtual FetchResult result_of_damage() const { return FetchResult::corrupt; }
  virtual void strike(Mishap mishap) = 0;
  virtual bool is_silent() = 0;  // somebody waits for an answer
  virtual void answer() = 0;
  virtual void let_time_pass(std::int64_t milliseconds) = 0;
  virtual void drain() = 0;  // returns when no thread works for the source

  const std::shared_ptr<CoreQueue> queue = std::make_shared<CoreQueue>(100);
};

inline Fate fate_of(Mishap mishap, const net::FetchPart& part) {
  if (mishap == Mishap::loss) return {.end = net::FetchEnd::not_there};
  if (mishap == Mishap::damage && part.size_bytes != 0) return {.wrong_byte = 3};
  return {.is_held = mishap == Mishap::silence};
}

// A source that asks other nodes.
class OverNetwork : public SourceUnderTest {
 public:
  void strike(Mishap mishap) override {
    network().rule([mishap](auto, const auto&, const auto& part) { return fate_of(mishap, part); });
  }
  bool is_silent() override { return network().held() != 0; }
  void answer() override {
    network().rule(nullptr);
    network().release();
  }
  void let_time_pass(std::int64_t milliseconds) override { network().let_time_pass(milliseconds); }
  void drain() override {
    network().drain();
    pool().drain();
    network().drain();
  }

 private:
  virtual FakeNetwork& network() = 0;
  virtual WorkerPool& pool() = 0;
};

// A source for a piece that only node `owner` has.
class OfOneNode : public OverNetwork {
 public:
  OfOneNode() {
    write_piece(theirs_->writable_slot(0), piece_);
    network_.index(owner).add({core::held_rank, "shard", 0}, theirs_, piece_.manifest);
  }
  ~OfOneNode() override { drain(); }
  core::StartFetch order() const override {
    return {1, piece_info(piece_.manifest), owner, {core::held_rank, "shard", 0}};
  }
  std::shared_ptr<arena::Segment> segment() const override { return ours_; }
  const Piece& piece() const override { return piece_; }
  FakeNetwork& network() override { return network_; }
  WorkerPool& pool() override { return pool_; }

 protected:
  std::shared_ptr<arena::Segment> make_segment() {
    return std::make_shared<arena::Segment>(
        arena_.create_segment(segment_spec(core::held_rank, "shard", length_bytes), 1));
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  const Piece piece_ = make_piece("shard", checkpoint, length_bytes);
  std::shared_ptr<arena::Segment> theirs_ = make_segment(), ours_ = make_segment();
  WorkerPool pool_{2};
  FakeNetwork network_{100'000, false};
  const std::unique_ptr<net::Transport> transport_ = transport_over(network_);
  std::shared_ptr<TransportPort> port_ = std::make_shared<TransportPort>(*transport_);
};

class Peer : public OfOneNode {
 public:
  ReplicaSource& source() override { return source_; }

 private:
  PieceIndex index_;
  ArrivingPieces arriving_{own_node};
  PeerSource source_{pool_, *queue, port_, index_, arriving_};
};

// GPU replication: the piece is in the receive buffer of rank 0, which exchanges pieces with rank 1 on node `owner`.
class Gpu : public OfOneNode {
 public:
  Gpu() {
    replications_.notify({0, checkpoint.incarnation(), {{{own_node, 0, "own"}, {owner, 1, "shard"}}, 0, ""}});
    trainer_.emplace(
        arena::ReceiveBuffer::attach(UniqueFd(::fcntl(*replications_.receive_buffer_fd(0), F_DUPFD_CLOEXEC, 0))));
    arena::ReplicationState word;
    word.piece_bytes = length_bytes;
    word.state = {checkpoint.word(), length_bytes, 4096, 1, false};
    trainer_->page().publish(word);
    replications_.look(0);
    replications_.received(
        owner, {checkpoint.incarnation(), 1, 0, {}, 4096, length_bytes, checkpoint.word(), length_bytes, 1, false});
    const bool is_live = eventually([&] {
      while (const auto task = queue->take(Deadline::in_ms(0))) (*task)();
      return trainer_->find_places() && replications_.place_of(order().piece, owner);
    });
    if (!is_live) throw std::runtime_error("the replication did not begin");
    trainer_->begin(1, checkpoint);
    std::copy(piece_.data.begin(), piece_.data.end(), trainer_->bytes(1).data());
    trainer_->received(1, length_bytes);
  }
  ~Gpu() override { drain(); }
  ReplicaSource& source() override { return source_; }
  void strike(Mishap mishap) override {
    OverNetwork::strike(mishap);
    if (mishap == Mishap::damage) trainer_->bytes(1)[7] ^= std::byte{1};
  }

 private:
  PieceIndex index_;
  Segments segments_{arena_, {0, 3, 2}, index_, *queue, [](const SegmentKey&) { return false; }};
  ReplicationManager replications_{{arena_.directory(), segments_, *queue, [](auto, const auto&) {}, [](auto) {}, [] {},
                                    [](const auto&) {}, [](auto) { return std::uint64_t{0}; }}};
  std::optional<arena::ReceiveBuffer> trainer_;
  ChunkBuffers buffers_;
  CodingSource coding_{{own_node, index_, pool_, buffers_, port_}, *queue};
  GpuSource source_{replications_, pool_, *queue, port_, coding_};
};

// Decoding: the shard of member 0 is lost, and the rest of its parity group is there.
class Coding : public OverNetwork {
 public:
  Coding() {
    group_.encode();
    group_.lose({0, false});
  }
  ~Coding() override { drain(); }
  ReplicaSource& source() override { return source_; }
  core::StartFetch order() const override {
    const auto lost = group_.info({0, false});
    return {1,
            lost,
            core::parity_node,
            {core::held_rank, lost.shard, 1},
            {group_.info({0, true}).parity_manifest, group_.sources()}};
  }
  std::shared_ptr<arena::Segment> segment() const override { return group_.segment({0, false}); }
  const Piece& piece() const override { return group_.shards[0]; }
  // It tries again without the damaged pieces, and too few are left.
  FetchResult result_of_damage() const override { return FetchResult::failed; }
  FakeNetwork& network() override { return group_.network; }
  WorkerPool& pool() override { return group_.pool; }

 private:
  ParityGroup group_{{3 * leaf + 5, 4 * leaf, 2 * leaf + 77}, 1, 100'000, false};
  CodingSource source_{{own_node, group_.network.index(own_node), group_.pool, group_.buffers, group_.port}, *queue};
};

// What storage does, for all threads that read from it.
struct FakeStorage {
  std::mutex mutex;
  std::condition_variable_any changed;
  Mishap mishap = Mishap::none;
  std::size_t waiting = 0;
  bool is_time_over = false;

  void answer_for(const std::string& shard, const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    if (mishap == Mishap::loss) throw Failure(CKPT_ERR_LOST, shard + " is gone");
    if (mishap == Mishap::damage) throw Failure(CKPT_ERR_CORRUPT, shard + " is damaged");
    if (mishap != Mishap::silence) return;
    ++waiting;
    changed.wait(lock, stop, [&] { return mishap != Mishap::silence || is_time_over; });
    --waiting;
    if (mishap == Mishap::silence) throw Failure(CKPT_ERR_TIMEOUT, "no answer");
  }
};

class FakeCheckpoints : public persist::CheckpointSource {
 public:
  FakeCheckpoints(FakeStorage& storage, const Piece& piece, std::stop_token stop)
      : storage_(storage), piece_(piece), stop_(std::move(stop)) {}
  std::string name() const override { return "fake"; }
  persist::Listing list() override {
    const arena::Manifest& manifest = piece_.manifest;
    persist::Listing listing;
    listing.offers.push_back({manifest.checkpoint,
                              manifest.world_size,
                              {{manifest.shard,
                                manifest.length_bytes,
                                manifest.layout.size(),
                                manifest.root_digest,
                                {{0, manifest.length_bytes}}}}});
    return listing;
  }
  arena::Manifest manifest(const std::string&, CheckpointId) override { return piece_.manifest; }
  void read(const std::string& shard, CheckpointId, persist::ByteRange range, std::byte* destination) override {
    storage_.answer_for(shard, stop_);
    std::copy_n(piece_.data.begin() + static_cast<std::ptrdiff_t>(range.offset_bytes), range.size_bytes, destination);
  }

 private:
  FakeStorage& storage_;
  const Piece& piece_;
  const std::stop_token stop_;
};

class Storage : public SourceUnderTest {
 public:
  ReplicaSource& source() override { return source_; }
  core::StartFetch order() const override {
    return {1, piece_info(piece_.manifest), core::storage_node, {core::held_rank, "shard", 0}};
  }
  std::shared_ptr<arena::Segment> segment() const override { return segment_; }
  const Piece& piece() const override { return piece_; }
  void strike(Mishap mishap) override {
    set([&] { storage_.mishap = mishap; });
  }
  bool is_silent() override {
    const std::lock_guard lock(storage_.mutex);
    return storage_.waiting != 0;
  }
  void answer() override { strike(Mishap::none); }
  void let_time_pass(std::int64_t) override {
    set([&] { storage_.is_time_over = true; });
  }
  void drain() override {}

 private:
  template <class Change>
  void set(const Change& change) {
    const std::lock_guard lock(storage_.mutex);
    change();
    storage_.changed.notify_all();
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::shared_ptr<arena::Segment> segment_ =
      std::make_shared<arena::Segment>(arena_.create_segment(segment_spec(core::held_rank, "shard", length_bytes), 1));
  const Piece piece_ = make_piece("shard", checkpoint, length_bytes);
  FakeStorage storage_;
  PieceIndex index_;
  StorageTier tier_{
      Options(),
      {[this](std::stop_token stop) { return std::make_unique<FakeCheckpoints>(storage_, piece_, std::move(stop)); }},
      index_,
      *queue,
      [](const core::Event&) {},
      [](const std::string&) {}};
  StorageReader source_{&tier_, *queue};
};

}  // namespace ckpt::agent::testing
