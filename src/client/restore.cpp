// The engine's restore: takes part in the job's decision, and brings the decided checkpoint into the tensors.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "arena/comm_log.hpp"
#include "base/error.hpp"
#include "client/engine.hpp"
#include "client/training_watch.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t manifest_wait_ms = 1'000;  // for the manifests, once the agent has named their slots
constexpr std::int64_t answer_margin_ms = 2'000;  // the agent keeps to the timeout and says what it waited for

nlohmann::json report_of(const CorruptPiece& corrupt) {
  return {
      {"type", "corrupt"}, {"shard", corrupt.shard}, {"checkpoint", corrupt.checkpoint.word()}, {"leaf", corrupt.leaf}};
}

// The tensors' bytes of the piece, without its first leaves.
device::Plan plan_of(const ShardState& shard, const StoredPiece& stored, std::size_t first_leaf = 0) {
  const auto range = arena::range_of(core::parse_part(stored.manifest.shard), shard.length_bytes());
  const std::uint64_t skipped_bytes = std::min(first_leaf * kernels::leaf_size_bytes, range.size_bytes);
  return shard.plan.slice(range.first_byte + skipped_bytes, range.size_bytes - skipped_bytes);
}

// Loads the piece, of which the tensors hold all leaves before `first_leaf`.
std::optional<CorruptPiece> load_piece(device::Device& device, const ShardState& shard, const StoredPiece& stored,
                                       std::size_t first_leaf, device::Stream stream) {
  const auto leaf = device.load(
      plan_of(shard, stored, first_leaf),
      {stored.slot.data() + first_leaf * kernels::leaf_size_bytes, stored.manifest.leaves.data() + first_leaf}, stream);
  if (!leaf) return std::nullopt;
  return CorruptPiece{stored.manifest.shard, stored.manifest.checkpoint, first_leaf + *leaf};
}

// Copies one of the shards that this rank gets, and checks every leaf of the copy.
std::optional<CorruptPiece> copy_shard(const Stored& stored, const std::string& shard, std::span<std::byte> target) {
  const auto pieces = pieces_of(stored, shard);
  if (pieces.empty())
    throw Failure(CKPT_ERR_INVALID, "this rank gets no shard '" + shard +
                                        "'; stored_layout() lists those that it gets, under \"taken\" or \"shards\"");
  const std::uint64_t length = pieces.front()->layout.length_bytes;
  if (target.size() != length)
    throw Failure(CKPT_ERR_INVALID, "shard '" + shard + "' has " + std::to_string(length) +
                                        " bytes, but load_taken() got room for " + std::to_string(target.size()) +
                                        "; give it room for exactly the shard");
  for (const StoredPiece* piece : pieces) {
    const arena::Manifest& manifest = piece->manifest;
    const auto range = arena::range_of(core::parse_part(manifest.shard), length);
    std::byte* begin = target.data() + range.first_byte;
    if (range.size_bytes != 0) std::memcpy(begin, piece->slot.data(), range.size_bytes);
    for (std::size_t leaf = 0; leaf < manifest.leaves.size(); ++leaf) {
      const std::byte* at = begin + leaf * kernels::leaf_size_bytes;
      if (kernels::leaf_digest(at, kernels::leaf_length(range.size_bytes, leaf)) != manifest.leaves[leaf])
        return CorruptPiece{manifest.shard, manifest.checkpoint, leaf};
    }
  }
  return std::nullopt;
}

// The name of a tensor that differs from the stored piece in this leaf. "" if none does: then the piece is damaged.
std::string changed_tensor(device::Device& device, const ShardState& shard, const StoredPiece& stored, std::size_t leaf,
                           device::Stream stream) {
  const auto range = arena::range_of(core::parse_part(stored.manifest.shard), shard.length_bytes());
  const std::uint64_t begin = range.first_byte + leaf * kernels::leaf_size_bytes;
  const std::uint64_t end = begin + kernels::leaf_length(range.size_bytes, leaf);
  for (std::size_t i = 0; i < shard.layout.entries.size(); ++i) {
    const arena::LayoutEntry& entry = shard.layout.entries[i];
    const std::uint64_t from = std::max(begin, entry.offset_bytes);
    const std::uint64_t to = std::min(end, entry.offset_bytes + entry.size_bytes);
    if (from >= to) continue;
    const std::uint64_t captured = kernels::leaf_digest(stored.slot.data() + (from - range.first_byte), to - from);
    if (device.verify(shard.plan.slice(from, to - from), &captured, stream)) return entry.name;
  }
  return {};
}

std::uint64_t loaded_bytes(const StoredPiece& piece) {
  return piece.tier == CKPT_TIER_LIVE ? 0 : piece.manifest.length_bytes;
}

// Of the parts that were loaded.
ckpt_tier main_tier(const Stored& stored) {
  ckpt_tier tier = CKPT_TIER_NONE;
  for (const auto* pieces : {&stored.main, &stored.taken})
    for (const StoredPiece& part : *pieces)
      if (part.tier != CKPT_TIER_LIVE) tier = std::max(tier, part.tier);
  if (stored.is_taken_over()) return std::max(tier, stored.private_->tier);
  return tier == CKPT_TIER_NONE ? CKPT_TIER_LIVE : tier;
}

// What ranks should know that are not as those that captured the checkpoint. `cuts_anew`: the program has cut the
// tensors anew.
std::string split_news(const Stored& stored, const Options& options, bool cuts_anew) {
  const std::uint32_t then = stored.private_->manifest.world_size;
  const bool adopted = stored.private_->manifest.shard != options.private_shard();
  std::string news;
  if (then != options.world_size)
    news = "the world size changed from " + std::to_string(then) + " to " + std::to_string(options.world_size);
  else if (cuts_anew)
    news = "the ranks split the state in another way than before";
  if (adopted)
    news += (news.empty() ? "" : "; ") + std::string("rank ") + std::to_string(options.rank) +
            " has no private shard in this checkpoint and adopted rank 0's";
  return news;
}

}  // namespace

nlohmann::json Engine::restore_request(Deadline deadline, bool follows_arrivals) const {
  return {{"type", "restore"},
          {"follows_arrivals", follows_arrivals},
          {"timeout_ms", deadline.remaining_ms()},
          {"replication", options_.replication == ReplicationMode::device},
          {"takes_shards", takes_shards_}};
}

// Asks until all pieces that the agent sends are whole. Reports each damaged one, so that the agent does not send it
// again. Ends earlier if the follower, if there is one, needs no more.
void Engine::ask_for_stored(nlohmann::json request, Deadline deadline, const Follower* follower) {
  stored_.reset();
  while (!stored_) {
    // After the deadline, only the final answer ends the loop. Otherwise news of new fetches could prolong it for ever.
    const bool follows = follower != nullptr && !deadline.passed();
    const nlohmann::json again = restore_request(deadline, follows);
    for (const auto& [key, value] : again.items())
      if (key != "type") request[key] = value;
    Frame answer = link_.ask(request, again, Deadline::in_ms(deadline.remaining_ms() + answer_margin_ms),
                             follower != nullptr ? follower->meanwhile : nullptr);
    if (follows && answer.body.contains("arriving")) {
      if (!follower->take(take_arriving(std::move(answer)))) return;
      request = again;
      continue;
    }
    try {
      stored_ = take_stored(std::move(answer));
    } catch (const CorruptPiece& corrupt) {
      request = report_of(corrupt);
    }
  }
  check_early_layout();
}

// The tensors were made as stored_layout() said. The next call of stored_layout() says what is stored now.
void Engine::check_early_layout() {
  if (!early_layout_ || early_layout_->is_of(*stored_)) return;
  early_layout_.reset();
  throw Failure(CKPT_ERR_LOST,
                "the checkpoint that stored_layout() described was lost before all of it was here. What is stored now "
                "has another layout, or nothing is stored; call stored_layout() again, or start all ranks again");
}

const Stored& Engine::stored(Deadline deadline) {
  if (!stored_) ask_for_stored({{"type", "restore"}}, deadline);
  return *stored_;
}

const std::string& Engine::stored_layout() {
  if (incarnation_.load() != 0 && stored_layout_.empty())
    throw Failure(CKPT_ERR_INVALID, "stored_layout() was called after restore(); call it before restore()");
  if (incarnation_.load() == 0 && (stored_ || !early_layout_)) ask_for_layout();
  return stored_layout_;
}

void Engine::ask_for_layout() {
  const Deadline deadline = Deadline::in_ms(options_.restore_timeout_ms);
  EarlyLayout early;
  const Follower finding{
      [&](ArrivingSlots news) {
        early.add(std::move(news));
        return !early.find(Deadline::in_ms(std::min<std::int64_t>(manifest_wait_ms, deadline.remaining_ms())));
      },
      nullptr};
  if (!stored_) ask_for_stored({{"type", "restore"}}, deadline, loads_early() ? &finding : nullptr);
  stored_layout_ = stored_ ? stored_layout_json(*stored_) : early.json();
  if (!stored_) early_layout_ = std::move(early);
}

void Engine::take_shards() {
  if (stored_ || early_layout_ || incarnation_.load() != 0)
    throw Failure(CKPT_ERR_INVALID,
                  "take_shards() was called after stored_layout() or restore(); call it before both of them");
  takes_shards_ = true;
}

void Engine::load_taken(const std::string& shard, void* data, std::size_t size_bytes) {
  if ((!stored_ && !early_layout_) || incarnation_.load() != 0)
    throw Failure(CKPT_ERR_INVALID,
                  "load_taken() was called before stored_layout() or after restore(); call it between them");
  const Deadline deadline = Deadline::in_ms(options_.restore_timeout_ms);
  while (const auto corrupt = copy_shard(stored(deadline), shard, {static_cast<std::byte*>(data), size_bytes}))
    ask_for_stored(report_of(*corrupt), deadline);
  has_taken_ = true;
  taken_bytes_ += size_bytes;
}

// Loads a piece, unless the tensors hold it. `is_expected`: they should, so people are told if they do not.
std::optional<CorruptPiece> Engine::load_or_keep(const ShardState& shard, StoredPiece& stored, bool is_expected,
                                                 const EarlyLoad& early, device::Stream stream) {
  if (live_ == stored.manifest.checkpoint) {
    const auto leaf = device_->verify(plan_of(shard, stored), stored.manifest.leaves.data(), stream);
    if (!leaf) {
      stored.tier = CKPT_TIER_LIVE;
      return std::nullopt;
    }
    if (const std::string name = is_expected ? changed_tensor(*device_, shard, stored, *leaf, stream) : "";
        !name.empty())
      warnings_.add(CKPT_WARNING_TENSORS_CHANGED,
                    "tensor " + name + " is not what was captured at iteration " + std::to_string(live_->iteration()) +
                        "; its stored value is loaded. Find out whether the program changed the tensor in the halted "
                        "job, whether ranks that share the shard differ, or whether memory is faulty");
  }
  return load_piece(*device_, shard, stored, early.leaves_loaded(stored.manifest), stream);
}

std::optional<CorruptPiece> Engine::load(const EarlyLoad& early, device::Stream stream) {
  const RankState& state = registry_.state();
  if (cuts_anew()) return std::nullopt;  // load_taken() has loaded it
  check_matches(*stored_, state);
  if (!stored_->found) return std::nullopt;
  for (StoredPiece& part : stored_->main)
    if (auto corrupt = load_or_keep(state.main, part, !is_registered_anew_, early, stream)) return corrupt;
  return load_or_keep(state.private_, *stored_->private_, false, early, stream);
}

// A new process has its first state in its tensors. This one has trained, or has loaded a part of a checkpoint that was
// lost before all of it was here.
void Engine::check_not_fresh(const EarlyLoad& early) const {
  if ((!live_ && !holds_a_part_ && !early.has_changed_tensors()) || stored_->found) return;
  throw Failure(
      CKPT_ERR_LOST,
      std::string("no checkpoint is stored that all ranks can get, so the job must begin anew. This process cannot "
                  "take part, because ") +
          (live_ ? "its tensors have been trained already"
                 : "a checkpoint was lost while it was being loaded into its tensors") +
          ". End this process and start all ranks again together (under ckptrun: exit with status 75)");
}

// Runs before training has work on the GPU, because connecting the members waits for all of them and allocates memory.
// Returns why replication goes through the host although GPU replication was asked for. It never throws, because an
// incarnation can go on without it.
std::string Engine::join_replication(std::optional<arena::ReceiveBuffer> receive_buffer, Deadline deadline) {
  if (options_.replication != ReplicationMode::device) return {};
  if (!receive_buffer) return "checkpoints go from host to host in this incarnation; ckptctl status says why";
  try {
    GpuReplication::Settings settings;
    settings.replicator.environment = environ;
    settings.replicator.reserved_bytes = options_.gpu_replication_bytes;
    replication_control_ = link_.session().control;
    const auto control = replication_control_;
    if (options_.schedule == SendMode::idle)
      settings.training = [watch = std::make_shared<TrainingWatch>(control, options_.profile_iterations)] {
        return watch->look(Clock::now());
      };
    const std::uint64_t piece_bytes = std::max({registry_.state().main.length_bytes(), options_.slot_bytes, 1ul});
    gpu_replication_ = std::make_unique<GpuReplication>(*device_, std::move(*receive_buffer), piece_bytes, settings,
                                                        [control] { control->ring_agent(); });
    watched_replication_.store(gpu_replication_.get(), std::memory_order_release);
    gpu_replication_->meet(
        Deadline::in_ms(std::min<std::int64_t>(settings.replicator.meet_timeout_ms, deadline.remaining_ms())));
    return gpu_replication_->take_news().value_or("");
  } catch (const std::exception& failure) {
    return std::string("checkpoints go from host to host in this incarnation: ") + failure.what();
  }
}

ckpt_restored Engine::restore(device::Stream stream) {
  if (incarnation_.load() != 0)
    throw Failure(CKPT_ERR_INVALID, "restore() was called twice in this incarnation; call it once");
  device_->check_streams("restore()", {&stream, 1});
  const Deadline deadline = Deadline::in_ms(options_.restore_timeout_ms);
  EarlyLoad early(*device_, registry_.state());
  const std::shared_ptr<void> remember(nullptr,
                                       [&](void*) { holds_a_part_ = holds_a_part_ || early.has_changed_tensors(); });
  const Follower loading{[&](ArrivingSlots news) {
                           for (ArrivingSlot& arriving : news.slots) early.follow(std::move(arriving));
                           return true;
                         },
                         [&] { return early.step(); }};
  const Follower* const follower = loads_early() ? &loading : nullptr;
  if (early_layout_) loading.take({0, early_layout_->take_slots()});
  if (!stored_) ask_for_stored({{"type", "restore"}}, deadline, follower);
  check_not_fresh(early);
  const auto load_begin = Clock::now();
  while (const auto corrupt = load(early, stream)) {
    early.forget();
    ask_for_stored(report_of(*corrupt), deadline, follower);
    check_not_fresh(early);
  }
  const double load_ms = milliseconds_between(load_begin, Clock::now());
  use_gpu_comm(GpuComm::open(*device_, link_.session().control));
  link_.joined(stored_->incarnation);
  nlohmann::json restored = {{"type", "restored"}};
  if (!stored_->no_receive_buffer.empty()) restored["no_replication"] = stored_->no_receive_buffer;
  link_.ask(restored, restored, Deadline::in_ms(deadline.remaining_ms() + answer_margin_ms));

  ckpt_restored result = CKPT_RESTORED_INIT;
  result.found = stored_->found;
  result.behind = stored_->behind;
  result.status_unknown = stored_->status_unknown;
  result.incarnation = stored_->incarnation;
  result.iteration = stored_->found ? stored_->iteration : -1;
  result.next_iteration = result.iteration + 1;
  result.fetch_ms = stored_->fetch_ms;
  if (stored_->found) {
    result.main_tier = main_tier(*stored_);
    result.private_tier = stored_->private_->tier;
    if (cuts_anew()) {
      result.bytes = taken_bytes_;
    } else {
      result.bytes = loaded_bytes(*stored_->private_);
      for (const StoredPiece& part : stored_->main) result.bytes += loaded_bytes(part);
    }
    result.load_ms = load_ms;
    result.stored_world_size = stored_->private_->manifest.world_size;
    result.adopted = stored_->private_->manifest.shard != options_.private_shard();
    if (const std::string news = split_news(*stored_, options_, cuts_anew()); !news.empty())
      stored_->message += (stored_->message.empty() ? "" : "; ") + news;
    tickets_.restored(result.iteration);
    restored_word_.store(stored_->private_->manifest.checkpoint.word(), std::memory_order_release);
  }
  if (!stored_layout_.empty()) stored_layout_ = stored_layout_json(*stored_);  // it may have told a newer one
  registry_.share(stored_->share);
  is_replicated_ = stored_->is_replicated;
  restored_message_ = std::move(stored_->message);
  result.message = restored_message_.c_str();
  last_iteration_ = result.iteration;
  incarnation_.store(result.incarnation);
  gate_.rest(result.iteration, true);
  if (const std::string news = join_replication(std::move(stored_->receive_buffer), deadline); !news.empty())
    warnings_.add(CKPT_WARNING_REPLICATION, news);
  live_.reset();
  has_taken_ = false;
  taken_bytes_ = 0;
  stored_.reset();  // unmaps the pieces that were restored
  early_layout_.reset();
  if (!registry_.empty()) begin_reserving();
  return result;
}

}  // namespace ckpt::client
