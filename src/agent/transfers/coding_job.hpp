// CodingJob computes one piece of a parity group from other pieces of the group, and writes the result into a slot. The
// result is parity (encoding), or a lost shard (decoding). The job works chunk by chunk: it fetches the byte ranges
// that it needs, verifies and combines them, and verifies the result. It reads pieces of this node straight from their
// slots. If another part of the node makes the same parity, the job first takes and verifies what that part has made.
//
// Any thread may call start() and cancel(). Callbacks come on the transport's threads and the digest threads. `done`
// runs exactly once, on one of these threads or within start(). From then on the job does not touch the slot.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/chunk_buffers.hpp"
#include "agent/pieces/parity_manifest_codec.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/made_parity.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "base/clock.hpp"
#include "core/parity_pieces.hpp"
#include "kernels/coder.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class CodingJob : public std::enable_shared_from_this<CodingJob> {
 public:
  // How the job ended. If `result` is complete, the slot is sealed and has the piece with this manifest.
  struct Outcome {
    core::FetchResult result = core::FetchResult::failed;
    std::optional<arena::Manifest> manifest;
    std::vector<PieceRef> damaged;   // sources whose bytes do not match their digests
    std::vector<PieceRef> wrong;     // parity that matches its digests but was computed wrongly from the group's shards
    std::vector<PieceRef> suspects;  // parity pieces that were read together, at least one of which is wrong
    std::vector<PieceRef> unusable;  // what to leave out next time: damaged, wrong, and those that could not be fetched
    std::uint64_t received_bytes = 0;  // bytes of sources from other nodes
    std::uint64_t taken_bytes = 0;     // bytes that the job has taken from MadeParity, and not computed
  };
  using Done = std::function<void(Outcome outcome)>;

  // What the job uses. The references must stay valid until the job is destroyed and the transport has made its last
  // callback.
  struct Dependencies {
    core::NodeId node = 0;  // this one
    PieceIndex& index;
    WorkerPool& pool;
    ChunkBuffers& buffers;
    std::shared_ptr<TransportPort> transport;
    bool urgent = false;                      // fetches do not wait for an idle network
    std::int64_t arrival_timeout_ms = 2'000;  // longest wait during which nothing is made elsewhere
  };

  // `made`: parity that is being made elsewhere; null: none.
  CodingJob(const Dependencies& dependencies, FetchDestination destination, core::CodingInputs coding_inputs, Done done,
            std::shared_ptr<const MadeParity> made = nullptr);

  void start();
  // Call look() when more may have been made. Call it regularly, too, because only here the job notices that nothing
  // has been made for `arrival_timeout_ms`. It then computes the rest itself. stop_waiting(): nothing more will be
  // made.
  void look();
  void stop_waiting();
  // Fetches nothing more and leaves the slot unsealed. `done` runs once everything under way has ended.
  void cancel();

 private:
  // Limit for the fetch of a manifest or a chunk. The transport gives up much earlier if no bytes arrive at all.
  static constexpr std::int64_t fetch_timeout_ms = 30'000;

  struct Chunk;
  class ManifestSink;
  class ChunkSink;
  // A piece of the group that the job reads.
  struct Input {
    std::vector<core::NodeId> nodes;  // other nodes that have the piece, in the order in which they are tried
    std::uint64_t root_digest = 0;
    Pin here;  // set if the piece is on this node
    std::optional<arena::Manifest> manifest;
  };

  // In coding_manifests.cpp: decide which pieces to read, and get their manifests.
  bool plan();  // returns false if there are too few sources
  std::vector<std::string> manifests_needed() const;
  bool has_input(const std::string& shard) const;
  void ask_for_manifest(const std::string& shard, std::size_t attempt);
  void manifest_ended(const std::string& shard, std::size_t attempt, std::optional<arena::Manifest> manifest,
                      bool is_damaged);
  bool is_expected(const std::string& shard, const arena::Manifest& manifest) const;
  bool is_of_group(const core::PieceInfo& piece) const;  // as the parity manifest describes it
  void keep_manifests();
  bool prepare_slot();

  // In made_parity.cpp: take what is made elsewhere.
  void begin_to_take();
  void take(std::size_t first_leaf, std::size_t last_leaf);
  bool take(std::size_t leaf);
  std::uint64_t source_digest(const placement::DecodeSource& source, std::uint64_t offset) const;
  void go_on();

  // In coding_job.cpp: read and combine the chunks, and end the job.
  void launch();
  bool has_next() const;
  std::shared_ptr<Chunk> next_chunk();
  void fetch(const std::shared_ptr<Chunk>& chunk, std::size_t source, std::size_t attempt);
  void source_ended(const std::shared_ptr<Chunk>& chunk, std::size_t source, std::size_t attempt, bool is_whole);
  void source_ready(const std::shared_ptr<Chunk>& chunk);
  void combine(const std::shared_ptr<Chunk>& chunk);
  bool check_sources(const Chunk& chunk, const std::vector<std::vector<std::uint64_t>>& digests);
  void chunk_over(const std::shared_ptr<Chunk>& chunk);

  bool has_failed();
  void fail(core::FetchResult result);
  void unusable(const std::string& shard, core::NodeId node);
  void damaged(const std::string& shard, core::NodeId node);
  void made_nothing_true(const Chunk& chunk);
  void finish_if_over();
  void seal(Outcome& outcome);

  const Dependencies deps_;
  FetchDestination destination_;
  const core::PieceInfo piece_;
  const core::CodingInputs coding_inputs_;
  const Done done_;
  const std::shared_ptr<const MadeParity> made_;
  placement::ParityLayout layout_;

  // Constant from the first chunk on.
  std::map<std::string, Input> inputs_;  // all pieces that may be read
  std::vector<placement::DecodeStep> steps_;
  std::vector<std::shared_ptr<const kernels::Coder>> coders_;  // of each step
  KeptManifests kept_;
  // Leaf digests that the piece must have; empty when it is computed for the first time.
  std::vector<std::uint64_t> expected_;

  std::mutex mutex_;
  std::size_t under_way_ = 0;  // fetches of manifests, and chunks, that have not ended
  std::size_t manifests_missing_ = 0;
  std::size_t step_ = 0;       // of the next chunk
  std::uint64_t in_step_ = 0;  // offset of the next chunk in that step
  // While the job takes what is made elsewhere, and before it computes the rest:
  bool takes_ = false;
  bool is_taking_ = false;  // a digest thread is taking leaves
  bool may_wait_ = true;    // more may be made; false after stop_waiting()
  bool has_wrong_leaf_ = false;
  std::size_t taken_ = 0;  // leaves, from the first one on
  Deadline arrival_deadline_ = Deadline::in_ms(0);
  std::vector<std::uint64_t> leaves_;
  Outcome outcome_;
  std::optional<core::FetchResult> failure_;
  bool cancelled_ = false;
  bool over_ = false;
};

}  // namespace ckpt::agent
