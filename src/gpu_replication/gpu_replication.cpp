#include "gpu_replication/gpu_replication.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "gpu_replication/parity_place.hpp"

namespace ckpt::client {
namespace {

constexpr const char* another_gave_up =
    "another rank of the group, or this node's agent, has given up GPU replication; ckptctl status says why";

schedule::StepMemory step_memory_of(const arena::ReceiveBuffer& receive_buffer) {
  return {static_cast<std::uint32_t>(receive_buffer.members()), receive_buffer.rows()};
}

std::uint64_t own_chunk_bytes(const GpuReplication::Settings& settings, const schedule::StepMemory& step_memory) {
  const std::uint64_t share_bytes = settings.replicator.reserved_bytes / settings.buffers;
  return std::max(step_memory.chunk_bytes(share_bytes, settings.grain_bytes), settings.grain_bytes);
}

}  // namespace

GpuReplication::GpuReplication(device::Device& device, arena::ReceiveBuffer receive_buffer, std::uint64_t piece_bytes,
                               const Settings& settings, std::function<void()> ring)
    : device_(device),
      settings_(settings),
      ring_(std::move(ring)),
      words_(receive_buffer.members()),
      agreement_(static_cast<std::uint32_t>(receive_buffer.members()),
                 static_cast<std::uint32_t>(receive_buffer.member())),
      step_memory_(step_memory_of(receive_buffer)),
      pacer_(settings.grain_bytes, own_chunk_bytes(settings, step_memory_), settings.buffers) {
  memory_ = std::make_shared<Memory>(Memory{std::move(receive_buffer), {}});
  words_[memory_->receive_buffer.member()].emplace().piece_bytes = piece_bytes;
}

void GpuReplication::meet(Deadline deadline) {
  try {
    device_.check_replication(
        settings_.replicator.environment);  // before the others reserve memory for this rank's pieces
    if (memory_->receive_buffer.member() == 0) {
      const auto id = device_.new_communicator_id();
      const Lock lock(mutex_);
      words_[0]->id = id;
    }
    Lock lock(mutex_);
    receive_states();
    send_state();
    changed_.wait_until(lock, deadline.at(), [this] { return agreement_.has_given_up() || everybody_is_there(); });
    if (agreement_.has_given_up()) throw Failure(CKPT_ERR_INVALID, another_gave_up);
    if (!everybody_is_there())
      throw Failure(CKPT_ERR_TIMEOUT, "not all ranks of the replication group were ready when restore() had to return");
    lock.unlock();
    open();
    if (replicator_->wait_to_meet(deadline)) return;
    replicator_->give_up("not all ranks of the replication group connected over NCCL before restore() had to return");
    lock.lock();  // the replicator now reports its failure, perhaps with a better reason
    const Deadline reported_by = Deadline::in_ms(settings_.replicator.end_timeout_ms);
    changed_.wait_until(lock, reported_by.at(), [this] { return has_failed_; });
    if (!has_failed_) fail("NCCL's work on the GPU did not stop in time; check whether the GPU hangs (nvidia-smi)");
  } catch (const std::exception& failure) {
    const Lock lock(mutex_);
    fail(failure.what());
  }
}

// The caller holds the lock, here and below unless said otherwise. Throws Failure.
bool GpuReplication::everybody_is_there() {
  const bool all_notified =
      std::all_of(words_.begin(), words_.end(), [](const auto& word) { return word.has_value(); });
  return all_notified && words_.front()->id && memory_->receive_buffer.find_places();
}

device::Range GpuReplication::receive_buffers() const {
  const arena::ReceiveBuffer& receive_buffer = memory_->receive_buffer;
  const auto first = receive_buffer.bytes(0), last = receive_buffer.bytes(receive_buffer.members() - 1);
  const auto size_bytes = static_cast<std::size_t>(last.data() + last.size() - first.data());
  return {first.data(), (size_bytes + arena::page_bytes - 1) / arena::page_bytes * arena::page_bytes};
}

// Larger chunks would leave sub-buffers empty even for the largest piece. All members compute the same size.
std::uint64_t GpuReplication::chunk_bytes_useful() const {
  std::vector<std::uint64_t> lengths_bytes{1};
  for (const auto& word : words_) lengths_bytes.push_back(word->piece_bytes);
  std::uint64_t longest_bytes = *std::max_element(lengths_bytes.begin(), lengths_bytes.end());
  // With parity, a step sends segments, of which a piece has as many as a stripe has data columns.
  if (step_memory_.rows != 0) longest_bytes = longest_bytes / (step_memory_.members - step_memory_.rows) + 1;
  const std::uint64_t share_bytes = (longest_bytes + settings_.buffers - 1) / settings_.buffers;
  return (share_bytes + settings_.grain_bytes - 1) / settings_.grain_bytes * settings_.grain_bytes;
}

// The caller does not hold the lock, because pinning takes long. Throws Failure.
void GpuReplication::open() {
  device::Replicator::Group group;
  device::Replicator::Settings settings = settings_.replicator;
  {
    const Lock lock(mutex_);
    settings.reserved_bytes =
        std::min(settings.reserved_bytes, step_memory_.size_bytes(chunk_bytes_useful()) * settings_.buffers);
    group = {*words_.front()->id, static_cast<std::uint32_t>(words_.size()),
             static_cast<std::uint32_t>(memory_->receive_buffer.member()), step_memory_.rows != 0};
  }
  std::shared_ptr<device::Replicator> replicator =
      device_.replicator(group, settings, receive_buffers(),
                         [this, memory = memory_](const std::string& why, bool is_stuck) { failed(why, is_stuck); });
  const Lock lock(mutex_);
  replicator_ = std::move(replicator);
  if (has_failed_) return replicator_->give_up(news_);
  go_on();
}

void GpuReplication::look(CheckpointId committed) {
  const Lock lock(mutex_);
  committed_ = std::max(committed_, committed.word());
  receive_states();
  go_on();
  changed_.notify_all();
}

void GpuReplication::give_up(const std::string& why) {
  const Lock lock(mutex_);
  stop(why);
}

void GpuReplication::stop(const std::string& why) {
  if (has_failed_) return;
  if (replicator_) return replicator_->give_up(why);  // calls failed(), which tells the others
  fail(why);
}

void GpuReplication::receive_states() {
  const arena::ReplicationPage page = memory_->receive_buffer.page();
  for (std::size_t member = 0; member < words_.size(); ++member) {
    if (!is_member(member)) continue;
    const auto word = page.state_of(member);
    if (!word) continue;
    words_[member] = word;
    agreement_.receive(static_cast<std::uint32_t>(member), word->state);
  }
}

void GpuReplication::capturing(CheckpointId checkpoint, std::span<const std::byte> piece, std::uint64_t capture,
                               std::shared_ptr<const void> owner) {
  const Lock lock(mutex_);
  add(checkpoint, PieceState::capturing, {piece, capture, nullptr, std::move(owner)});
}

void GpuReplication::captured(CheckpointId checkpoint, std::span<const std::byte> piece,
                              std::shared_ptr<const void> owner) {
  const Lock lock(mutex_);
  const auto found = memory_->pieces.find(checkpoint.word());
  if (found != memory_->pieces.end()) {
    found->second.state->store(PieceState::complete);
    return go_on();
  }
  add(checkpoint, PieceState::complete, {piece, 0, nullptr, std::move(owner)});
}

// An exchange that has begun ends once this member goes on to a newer checkpoint.
void GpuReplication::discarded(CheckpointId checkpoint) {
  const Lock lock(mutex_);
  const auto found = memory_->pieces.find(checkpoint.word());
  if (found != memory_->pieces.end()) found->second.state->store(PieceState::discarded);
}

void GpuReplication::add(CheckpointId checkpoint, PieceState state, Piece piece) {
  if (has_failed_ || checkpoint.word() <= committed_) return;
  // An offered piece may begin, and a begun one may still be read. All others are older and come too late.
  const std::uint64_t offered = agreement_.own().checkpoint, read = busy_ ? begun_ : offered;
  std::erase_if(memory_->pieces, [&](const auto& each) { return each.first != offered && each.first != read; });
  try {
    piece.state = std::make_shared<std::atomic<PieceState>>(state);
    memory_->pieces[checkpoint.word()] = std::move(piece);
  } catch (const std::bad_alloc& failure) {
    return stop(failure.what());
  }
  go_on();
}

// Does whatever has become possible. Runs on threads of the device, the replication and the link. None of them may
// throw.
void GpuReplication::go_on() {
  if (has_failed_ || !replicator_) return;
  try {
    advance();
  } catch (const std::exception& failure) {
    stop(failure.what());
  }
}

void GpuReplication::advance() {
  if (agreement_.has_given_up()) return replicator_->give_up(another_gave_up);
  if (settings_.training) training_ = settings_.training();
  offer();
  const std::uint64_t checkpoint = agreement_.own().checkpoint;
  if (busy_ && begun_ != checkpoint) replicator_->finish(begun_);
  if (const auto terms = agreement_.terms(); terms && !busy_ && begun_ != checkpoint) begin(*terms);
  promise();
  if (busy_ && begun_ == checkpoint) {
    pacer_.allowed(seconds_of(Clock::now()), agreement_.allowed());
    replicator_->allow(checkpoint, agreement_.allowed());
  }
  send_state();
}

// Offers the newest piece once the older one was taken from the receive buffers, because an exchange may begin at any
// time after the offer. A committed piece has already reached everybody from host to host.
void GpuReplication::offer() {
  if (memory_->pieces.empty()) return;
  const auto& [checkpoint, piece] = *memory_->pieces.rbegin();
  if (*piece.state == PieceState::discarded) return;
  if (checkpoint > committed_ && checkpoint > agreement_.own().checkpoint && is_taken(begun_))
    agreement_.offer(checkpoint, piece.bytes.size(), pacer_.chunk_bytes(training_));
}

bool GpuReplication::is_taken(std::uint64_t checkpoint) const {
  const arena::ReplicationPage page = memory_->receive_buffer.page();
  for (std::size_t member = 0; member < words_.size(); ++member)
    if (memory_->receive_buffer.is_used(member) && page.taken(member).word() < checkpoint) return false;
  return true;
}

// Promises as many filled chunks as training leaves time for. A promise is kept, whatever happens. If training always
// communicates, nothing is promised, and pieces go from host to host, which shares the network fairly.
void GpuReplication::promise() {
  const bool has_more = busy_ && begun_ == agreement_.own().checkpoint && begun_ > committed_ &&
                        filled_steps_ > agreement_.own().promised;
  if (has_more) agreement_.promise(begun_, pacer_.promise(filled_steps_, training_));
  is_held_.store(has_more && agreement_.own().promised < filled_steps_, std::memory_order_relaxed);
}

void GpuReplication::begin(const schedule::Agreement::Terms& terms) {
  const std::uint64_t checkpoint = agreement_.own().checkpoint;
  const Piece& piece = memory_->pieces.at(checkpoint);
  if (*piece.state == PieceState::discarded) return;
  arena::ReceiveBuffer& receive_buffer = memory_->receive_buffer;
  const std::uint64_t chunk_bytes = std::min(chunk_bytes_useful(), terms.chunk_bytes);
  if (chunk_bytes < settings_.grain_bytes)
    return replicator_->give_up(
        "a rank of the replication group asked for chunks that are smaller than a grain: this is a bug in ckptengine; "
        "report it with the agent's log");
  const schedule::ExchangePlan plan({terms.lengths_bytes, step_memory_.size_bytes(chunk_bytes) * settings_.buffers,
                                     settings_.buffers, settings_.grain_bytes, step_memory_.rows});
  std::vector<std::byte*> to(words_.size());
  for (std::size_t member = 0; member < words_.size(); ++member) {
    if (!receive_buffer.is_used(member)) continue;
    const std::uint64_t needed_bytes =
        plan.parity() != nullptr
            ? schedule::ParityPlace(*plan.parity(), static_cast<std::uint32_t>(member)).size_bytes()
            : terms.lengths_bytes[member];
    if (needed_bytes > receive_buffer.bytes(member).size())
      return replicator_->give_up(
          "a rank's state has outgrown the receive buffers that were made at restore(); set slot_bytes to the largest "
          "size that the state will have");
    to[member] = receive_buffer.bytes(member).data();
    receive_buffer.begin(member, CheckpointId::from_word(checkpoint));
  }
  begun_ = checkpoint;
  filled_steps_ = 0;
  busy_ = true;
  plan_ = plan;
  pacer_.begin(chunk_bytes, plan.sent_bytes());
  replicator_->begin(
      {checkpoint,
       *plan_,
       {piece.bytes.data(), piece.capture, piece.state},
       std::move(to),
       [this, checkpoint](std::uint64_t filled, std::uint64_t received) { progress(checkpoint, filled, received); },
       [this, checkpoint] { done(checkpoint); }});
}

// The caller does not hold the lock. The same holds for all other callbacks of the replicator.
void GpuReplication::progress(std::uint64_t checkpoint, std::uint64_t filled_steps, std::uint64_t received_steps) {
  const Lock lock(mutex_);
  for (std::size_t member = 0; member < words_.size(); ++member)
    if (memory_->receive_buffer.is_used(member))
      memory_->receive_buffer.received(member,
                                       plan_->arrived_bytes(static_cast<std::uint32_t>(member), received_steps));
  filled_steps_ = filled_steps;
  agreement_.ended(checkpoint, received_steps, plan_->steps());
  pacer_.received(seconds_of(Clock::now()), received_steps);
  go_on();
  ring_();
}

void GpuReplication::done(std::uint64_t checkpoint) {
  const Lock lock(mutex_);
  busy_ = false;
  if (plan_->steps() == 0) agreement_.ended(checkpoint, 0, 0);
  go_on();
}

void GpuReplication::failed(const std::string& why, bool is_stuck) {
  static std::mutex kept_mutex;
  static auto* const kept = new std::vector<std::shared_ptr<Memory>>;
  const Lock lock(mutex_);
  is_stuck_ = is_stuck;
  if (is_stuck) {
    const std::lock_guard kept_lock(kept_mutex);
    kept->push_back(memory_);
  } else {
    memory_->pieces.clear();
  }
  fail(why);
}

void GpuReplication::fail(const std::string& why) {
  if (std::exchange(has_failed_, true)) return;
  is_held_.store(false, std::memory_order_relaxed);
  news_ = "checkpoints go from host to host in this incarnation: " + why;
  has_news_.store(true, std::memory_order_release);
  agreement_.give_up();
  memory_->receive_buffer.page().fail(why);
  send_state();
  changed_.notify_all();
}

void GpuReplication::send_state() {
  arena::ReplicationState& own = *words_[memory_->receive_buffer.member()];
  own.state = agreement_.own();
  if (sent_state_ == own) return;
  sent_state_ = own;
  memory_->receive_buffer.page().publish(own);
  ring_();
}

void GpuReplication::end(const std::string& why) {
  std::shared_ptr<device::Replicator> replicator;
  {
    const Lock lock(mutex_);
    fail(why);
    replicator = std::move(replicator_);
  }
  replicator.reset();  // without the lock, because its callbacks take it
  const Lock lock(mutex_);
  if (!is_stuck_) memory_->pieces.clear();
}

std::optional<std::string> GpuReplication::take_news() {
  if (!has_news_.load(std::memory_order_acquire)) return std::nullopt;
  const Lock lock(mutex_);
  has_news_.store(false, std::memory_order_relaxed);
  return std::move(news_);
}

}  // namespace ckpt::client
