// A parity group with real bytes for tests of encoding and decoding. All of its nodes are in the test's process: their
// arenas, the pieces that each serves, and a transport. A test can let any fetch fail, damage its bytes or hold it
// back.
#pragma once

#include <algorithm>
#include <future>
#include <set>

#include "agent/transfers/coding_job.hpp"
#include "agent/transfers/recompute_source.hpp"
#include "kernels/gf256.hpp"
#include "support.hpp"
#include "tests/support/fake_transport.hpp"

namespace ckpt::agent::testing {

constexpr std::size_t leaf = kernels::leaf_size_bytes;

// What a test does to a fetch.
struct Fate {
  std::optional<net::FetchEnd> end = {};       // breaks off with half of the bytes there
  std::optional<std::size_t> wrong_byte = {};  // of the range, else of the manifest; counted modulo its size
  bool is_held = false;                        // until release()
};

// A network of nodes that serve the pieces in their indexes. The fetches of each node run on a thread of their own, or
// at once.
class FakeNetwork {
 public:
  using Rule = std::function<Fate(core::NodeId from, const net::PieceName& piece, const net::FetchPart& part)>;

  FakeNetwork(std::size_t chunk_bytes, bool immediate) : chunk_bytes_(chunk_bytes), synchronous_(immediate) {}

  PieceIndex& index(core::NodeId node) {
    const std::lock_guard lock(mutex_);
    return indexes_[node];
  }
  void rule(Rule rule) {
    const std::lock_guard lock(mutex_);
    rule_ = std::move(rule);
  }
  // Of what all nodes fetched.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  std::size_t fetches() const { return fetches_; }
  std::size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  void release() {
    std::vector<Held> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (Held& each : held) perform(std::move(each.fetch));
  }

  // Ends the fetches held back that may not take longer than this.
  void let_time_pass(std::int64_t milliseconds) {
    std::vector<Held> ended;
    {
      const std::lock_guard lock(mutex_);
      for (Held& each : held_)
        if (each.timeout_ms <= milliseconds) ended.push_back(std::exchange(each, {}));
      std::erase_if(held_, [](const Held& each) { return each.fetch == nullptr; });
    }
    for (Held& each : ended) perform([sink = std::move(each.sink)] { sink->ended(net::FetchEnd::timed_out); });
  }

  void fetch(core::NodeId from, net::PieceName name, net::FetchPart part, std::shared_ptr<net::Sink> sink,
             std::int64_t timeout_ms) {
    Fate fate;
    ++fetches_;
    {
      const std::lock_guard lock(mutex_);
      if (rule_) fate = rule_(from, name, part);
    }
    std::function<void()> job = [this, from, name = std::move(name), part, sink, fate] {
      serve(from, name, part, *sink, fate);
    };
    if (!fate.is_held) return perform(std::move(job));
    const std::lock_guard lock(mutex_);
    held_.push_back({std::move(job), std::move(sink), timeout_ms});
  }
  void drain() { thread_.drain(); }

 private:
  struct Held {
    std::function<void()> fetch;
    std::shared_ptr<net::Sink> sink;
    std::int64_t timeout_ms = 0;
  };

  void perform(std::function<void()> fetch) {
    if (synchronous_)
      fetch();
    else
      thread_.submit(std::move(fetch));
  }

  std::optional<net::ServedPiece> find(core::NodeId from, const net::PieceName& name) {
    if (auto record = serve_record(index(from), name)) return record;
    const Pin pin = index(from).find(name.shard, CheckpointId::from_word(name.checkpoint));
    if (pin == nullptr) return std::nullopt;
    return net::ServedPiece{
        pin->encoded_manifest(), {pin->data(), pin->manifest().length_bytes}, std::const_pointer_cast<HeldPiece>(pin)};
  }

  void serve(core::NodeId from, const net::PieceName& name, const net::FetchPart& part, net::Sink& sink,
             const Fate& fate) {
    const auto served = find(from, name);
    if (!served) return sink.ended(net::FetchEnd::not_there);
    const std::uint64_t length_bytes = served->data.size();
    const std::uint64_t first = std::min(part.first_byte, length_bytes);
    const std::size_t size = std::min(part.size_bytes, length_bytes - first);
    std::vector<std::byte> manifest;
    if (part.manifest) manifest.assign(served->manifest.begin(), served->manifest.end());
    std::vector<std::byte> data(served->data.begin() + static_cast<std::ptrdiff_t>(first),
                                served->data.begin() + static_cast<std::ptrdiff_t>(first + size));
    if (fate.wrong_byte) {
      auto& bytes = data.empty() ? manifest : data;
      bytes[*fate.wrong_byte % bytes.size()] ^= std::byte{4};
    }
    const auto into = sink.begin(manifest, size);
    if (!into) return sink.ended(net::FetchEnd::refused);
    const std::size_t arriving = fate.end ? size / 2 : size;
    for (std::size_t at = 0; at < arriving; at += chunk_bytes_) {
      const std::size_t chunk = std::min(chunk_bytes_, arriving - at);
      std::copy_n(data.data() + at, chunk, into->data() + at);
      sink.received(at, chunk);
      bytes_sent_ += chunk;
    }
    sink.ended(fate.end.value_or(net::FetchEnd::complete));
  }

  const std::size_t chunk_bytes_;
  const bool synchronous_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::size_t> fetches_{0};
  std::mutex mutex_;
  std::map<core::NodeId, PieceIndex> indexes_;
  Rule rule_;
  std::vector<Held> held_;
  WorkerPool thread_{1};
};

inline std::unique_ptr<net::Transport> transport_over(FakeNetwork& network) {
  auto transport = std::make_unique<test::FakeTransport>();
  transport->on_fetch = [&network](auto from, auto piece, auto part, auto sink, auto timeout_ms) {
    network.fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
  };
  return transport;
}

// A parity group in which node m is member m. All pieces are in slot 0 of their segments. A piece that a test makes
// goes to slot 1.
class ParityGroup {
 public:
  using Name = core::GroupPiece;  // of a piece

  ParityGroup(std::vector<std::size_t> lengths_bytes, std::uint32_t rows, std::size_t chunk_bytes = 100'000,
              bool immediate = true)
      : network(chunk_bytes, immediate) {
    parity_manifest.rows = rows;
    for (std::size_t m = 0; m < lengths_bytes.size(); ++m) {
      shards.push_back(make_piece("shard" + std::string(m + 1, 'x'), checkpoint, lengths_bytes[m]));
      const auto info = piece_info(shards.back().manifest);
      parity_manifest.sources.push_back({info.shard, info.length_bytes, info.layout_bytes, info.root_digest});
    }
    for (std::uint32_t m = 0; m < members(); ++m) {
      for (const bool is_parity : {false, true}) {
        const auto piece = info({m, is_parity});
        auto spec = segment_spec(core::held_rank, piece.shard, piece.length_bytes, 2);
        spec.manifest_capacity_bytes =
            arena::manifest_bytes(piece.length_bytes, is_parity ? encoded_bytes(piece.parity_manifest)
                                                                : static_cast<std::size_t>(piece.layout_bytes));
        segments_[piece.shard] = std::make_shared<arena::Segment>(arena_.create_segment(spec, 1));
      }
      write_piece(segment({m, false})->writable_slot(0), shards[m]);
      put({m, false}, m);
    }
  }

  std::uint32_t members() const { return static_cast<std::uint32_t>(parity_manifest.sources.size()); }
  std::vector<std::string> shard_names() const {
    std::vector<std::string> names;
    for (const auto& each : parity_manifest.sources) names.push_back(each.shard);
    return names;
  }
  core::PieceInfo info(Name name) const {
    if (!name.is_parity) return piece_info(shards[name.member].manifest);
    auto own = parity_manifest;
    own.member = name.member;
    return {core::parity_name(parity_manifest.rows, shard_names(), name.member),
            checkpoint,
            core::layout_of(parity_manifest).parity_bytes_of(name.member),
            0,
            0,
            shards.front().manifest.world_size,
            own};
  }
  std::shared_ptr<arena::Segment> segment(Name name) const { return segments_.at(info(name).shard); }
  std::vector<Name> all() const {
    std::vector<Name> names;
    for (std::uint32_t m = 0; m < members(); ++m) names.insert(names.end(), {{m, false}, {m, true}});
    return names;
  }

  // The piece in slot 0, at a node.
  void put(Name name, core::NodeId node) {
    const auto there = segment(name);
    network.index(node).add({core::held_rank, there->spec().shard, 0}, there, *there->slot(0).read());
    nodes_[info(name).shard].insert(node);
  }
  void lose(Name name, core::NodeId node) {
    network.index(node).drop({core::held_rank, info(name).shard, 0}, [] {});
    nodes_[info(name).shard].erase(node);
  }
  void lose(Name name) { lose(name, name.member); }
  void put(Name name) { put(name, name.member); }
  // In memory, as a broken chip does it.
  void spoil(Name name, std::size_t byte) { segment(name)->writable_slot(0).data()[byte] ^= std::byte{8}; }

  std::vector<core::CodingInputs::Source> sources() const {
    std::vector<core::CodingInputs::Source> found;
    for (const auto& [shard, nodes] : nodes_) {
      const auto manifest = segments_.at(shard)->slot(0).read();
      for (const auto node : nodes) found.push_back({shard, node, manifest ? manifest->root_digest : 0});
    }
    return found;
  }

  // Makes the piece at its member's node, in slot 1: of its segment, emptied, or of this one.
  std::shared_ptr<CodingJob> begin(Name name, std::shared_ptr<arena::Segment> into = nullptr) {
    if (into == nullptr) {
      into = segment(name);
      into->writable_slot(1).begin();
    }
    return begin(name, into, info(name));
  }
  // As if that were the piece. `made`: as CodingJob takes it.
  std::shared_ptr<CodingJob> begin(Name name, const std::shared_ptr<arena::Segment>& into, const core::PieceInfo& piece,
                                   std::shared_ptr<const MadeParity> made_elsewhere = nullptr) {
    auto made = std::make_shared<CodingJob>(
        CodingJob::Dependencies{name.member, network.index(name.member), pool, buffers, port, false,
                                arrival_timeout_ms},
        FetchDestination(into, 1, piece), core::CodingInputs{info({name.member, true}).parity_manifest, sources()},
        [this](CodingJob::Outcome outcome) { outcomes.put(std::move(outcome)); }, std::move(made_elsewhere));
    made->start();
    return made;
  }
  CodingJob::Outcome make(Name name) {
    begin(name);
    return outcomes.take();
  }
  // Encodes the parity of all members, one after the other.
  void encode() {
    for (std::uint32_t m = 0; m < members(); ++m) {
      if (make({m, true}).result != core::FetchResult::complete) throw std::runtime_error("not encoded");
      write_piece(segment({m, true})->writable_slot(0), made({m, true}));
      put({m, true});
    }
  }
  bool is_sealed(Name name) const { return bool(segment(name)->slot(1).checkpoint()); }
  Piece made(Name name) const {
    const auto slot = segment(name)->slot(1);
    Piece piece;
    if (const auto manifest = slot.read()) piece.manifest = *manifest;
    piece.data.assign(slot.data(), slot.data() + piece.manifest.length_bytes);
    return piece;
  }
  // Whether slot 1 has the same bytes as slot 0.
  bool is_made_again(Name name) const {
    const auto there = segment(name);
    const auto before = there->slot(0).read(), now = there->slot(1).read();
    return before && before == now &&
           std::equal(there->slot(0).data(), there->slot(0).data() + now->length_bytes, there->slot(1).data());
  }
  // Nothing runs any more, all buffers are back, and no second outcome came.
  bool is_quiet() {
    network.drain();
    pool.drain();
    bool all_back = false;
    buffers.ask(ChunkBuffers::count, [&](std::vector<ChunkBuffers::Buffer> all) {
      all_back = true;
      buffers.give_back(std::move(all));
    });
    return all_back && outcomes.empty();
  }

  static inline const CheckpointId checkpoint{2, 7};
  std::int64_t arrival_timeout_ms = 50'000;  // as CodingJob takes it
  std::vector<Piece> shards;
  core::ParityManifest parity_manifest;
  ChunkBuffers buffers;
  Mailbox<CodingJob::Outcome> outcomes;
  WorkerPool pool{2};
  FakeNetwork network;

 private:
  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::map<std::string, std::shared_ptr<arena::Segment>> segments_;
  std::map<std::string, std::set<core::NodeId>> nodes_;
  const std::unique_ptr<net::Transport> transport_ = transport_over(network);

 public:
  std::shared_ptr<TransportPort> port = std::make_shared<TransportPort>(*transport_);
};

}  // namespace ckpt::agent::testing
