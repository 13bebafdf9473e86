#include "engine/gpu_path.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace ckpt::engine {
namespace {

constexpr const char* another_gave_up =
    "another rank of the group, or this node's agent, has given it up; ckptctl status says why";

std::uint64_t own_chunk_bytes(const GpuPath::Settings& settings, std::uint32_t members) {
  const std::uint64_t share_bytes = settings.path.reserved_bytes / settings.buffers / members;
  return std::max(share_bytes / settings.grain_bytes, std::uint64_t{1}) * settings.grain_bytes;
}

}  // namespace

GpuPath::GpuPath(device::Device& device, arena::Landing landing, std::uint64_t piece_bytes, const Settings& settings,
                 std::function<void()> ring)
    : device_(device),
      settings_(settings),
      ring_(std::move(ring)),
      words_(landing.members()),
      agreement_(static_cast<std::uint32_t>(landing.members()), static_cast<std::uint32_t>(landing.member())),
      pacer_(settings.grain_bytes, own_chunk_bytes(settings, static_cast<std::uint32_t>(landing.members())),
             settings.buffers) {
  memory_ = std::make_shared<Memory>(Memory{std::move(landing), {}});
  words_[memory_->landing.member()].emplace().piece_bytes = piece_bytes;
}

void GpuPath::meet(Deadline deadline) {
  try {
    device_.check_path(settings_.path.environment);  // before anybody makes room for this one's pieces
    if (memory_->landing.member() == 0) {
      const auto id = device_.new_path_id();
      const Lock lock(mutex_);
      words_[0]->id = id;
    }
    Lock lock(mutex_);
    hear();
    tell();
    changed_.wait_until(lock, deadline.at(), [this] { return agreement_.has_given_up() || everybody_is_there(); });
    if (agreement_.has_given_up()) throw Failure(CKPT_ERR_INVALID, another_gave_up);
    if (!everybody_is_there()) throw Failure(CKPT_ERR_TIMEOUT, "not all ranks of the group came in time");
    lock.unlock();
    open();
    if (path_->wait_to_meet(deadline)) return;
    path_->give_up("not all ranks of the group met in time");
    lock.lock();  // what has failed tells why
    const Deadline told_by = Deadline::in_ms(settings_.path.end_timeout_ms);
    changed_.wait_until(lock, told_by.at(), [this] { return has_failed_; });
    if (!has_failed_) fail("the GPU does not answer");
  } catch (const std::exception& failure) {
    const Lock lock(mutex_);
    fail(failure.what());
  }
}

// With the lock held, as all below that do not say otherwise. Throws Failure.
bool GpuPath::everybody_is_there() {
  const bool all_told = std::all_of(words_.begin(), words_.end(), [](const auto& word) { return word.has_value(); });
  return all_told && words_.front()->id && memory_->landing.find_places();
}

device::Range GpuPath::landings() const {
  const arena::Landing& landing = memory_->landing;
  const auto first = landing.bytes(0), last = landing.bytes(landing.members() - 1);
  const auto size_bytes = static_cast<std::size_t>(last.data() + last.size() - first.data());
  return {first.data(), (size_bytes + arena::page_bytes - 1) / arena::page_bytes * arena::page_bytes};
}

// With larger ones not even the largest piece would fill all sub-buffers. The same for all members.
std::uint64_t GpuPath::chunk_bytes_useful() const {
  std::uint64_t largest_bytes = 1;
  for (const auto& word : words_) largest_bytes = std::max(largest_bytes, word->piece_bytes);
  const std::uint64_t share_bytes = (largest_bytes + settings_.buffers - 1) / settings_.buffers;
  return (share_bytes + settings_.grain_bytes - 1) / settings_.grain_bytes * settings_.grain_bytes;
}

// Without the lock: it takes as long as pinning takes. Throws Failure.
void GpuPath::open() {
  device::Path::Group group;
  device::Path::Settings settings = settings_.path;
  {
    const Lock lock(mutex_);
    settings.reserved_bytes =
        std::min(settings.reserved_bytes, chunk_bytes_useful() * settings_.buffers * words_.size());
    group = {*words_.front()->id, static_cast<std::uint32_t>(words_.size()),
             static_cast<std::uint32_t>(memory_->landing.member())};
  }
  std::shared_ptr<device::Path> path =
      device_.path(group, settings, landings(),
                   [this, memory = memory_](const std::string& why, bool is_stuck) { failed(why, is_stuck); });
  const Lock lock(mutex_);
  path_ = std::move(path);
  if (has_failed_) return path_->give_up(news_);
  go_on();
}

void GpuPath::look(Version committed) {
  const Lock lock(mutex_);
  committed_ = std::max(committed_, committed.word());
  hear();
  go_on();
  changed_.notify_all();
}

void GpuPath::give_up(const std::string& why) {
  const Lock lock(mutex_);
  stop(why);
}

void GpuPath::stop(const std::string& why) {
  if (has_failed_) return;
  if (path_) return path_->give_up(why);  // and tells
  fail(why);
}

void GpuPath::hear() {
  const arena::PathBoard board = memory_->landing.board();
  for (std::size_t member = 0; member < words_.size(); ++member) {
    if (!is_member(member)) continue;
    const auto word = board.heard(member);
    if (!word) continue;
    words_[member] = word;
    agreement_.hear(static_cast<std::uint32_t>(member), word->state);
  }
}

void GpuPath::captured(Version version, std::span<const std::byte> piece, std::shared_ptr<const void> owner) {
  const Lock lock(mutex_);
  if (has_failed_ || version.word() <= committed_) return;
  // What was offered may begin, and what was begun may still be read; the rest is older and comes too late.
  const std::uint64_t offered = agreement_.own().version, read = busy_ ? begun_ : offered;
  std::erase_if(memory_->pieces, [&](const auto& each) { return each.first != offered && each.first != read; });
  try {
    memory_->pieces[version.word()] = {piece, std::move(owner)};
  } catch (const std::bad_alloc& failure) {
    return stop(failure.what());
  }
  go_on();
}

// Whatever has become possible. Runs on threads of the device, the path and the link, none of which may throw.
void GpuPath::go_on() {
  if (has_failed_ || !path_) return;
  try {
    advance();
  } catch (const std::exception& failure) {
    stop(failure.what());
  }
}

void GpuPath::advance() {
  if (agreement_.has_given_up()) return path_->give_up(another_gave_up);
  if (settings_.training) training_ = settings_.training();
  offer();
  const std::uint64_t version = agreement_.own().version;
  if (busy_ && begun_ != version) path_->finish(begun_);
  if (const auto terms = agreement_.terms(); terms && !busy_ && begun_ != version) begin(*terms);
  promise();
  if (busy_ && begun_ == version) {
    pacer_.allowed(seconds_of(Clock::now()), agreement_.allowed());
    path_->allow(version, agreement_.allowed());
  }
  tell();
}

// The newest, once what lies where it will land was taken: whoever offers may leave an exchange in its middle. What is
// committed has come to everybody on the host's path.
void GpuPath::offer() {
  if (memory_->pieces.empty()) return;
  const auto& [version, piece] = *memory_->pieces.rbegin();
  if (version > committed_ && version > agreement_.own().version && is_taken(begun_))
    agreement_.offer(version, piece.bytes.size(), pacer_.chunk_bytes(training_));
}

bool GpuPath::is_taken(std::uint64_t version) const {
  const arena::PathBoard board = memory_->landing.board();
  for (std::size_t member = 0; member < words_.size(); ++member)
    if (is_member(member) && board.taken(member).word() < version) return false;
  return true;
}

// Of what lies in sub-buffers as much as training leaves time for: a promise is kept, whatever comes. Where it always
// communicates nothing is ever promised, and what is captured goes from host to host, where each has its share.
void GpuPath::promise() {
  const bool has_more =
      busy_ && begun_ == agreement_.own().version && begun_ > committed_ && filled_steps_ > agreement_.own().promised;
  if (has_more) agreement_.promise(begun_, pacer_.promise(filled_steps_, training_));
  is_held_.store(has_more && agreement_.own().promised < filled_steps_, std::memory_order_relaxed);
}

void GpuPath::begin(const schedule::Agreement::Terms& terms) {
  const std::uint64_t version = agreement_.own().version;
  arena::Landing& landing = memory_->landing;
  const std::uint64_t chunk_bytes = std::min(chunk_bytes_useful(), terms.chunk_bytes);
  if (chunk_bytes < settings_.grain_bytes)
    return path_->give_up("a rank of the group has no room for chunks on its GPU");
  std::vector<std::byte*> to(words_.size());
  for (std::size_t member = 0; member < words_.size(); ++member) {
    if (!is_member(member)) continue;
    if (terms.lengths_bytes[member] > landing.bytes(member).size())
      return path_->give_up(
          "a rank's state has grown beyond the room that was made for it at restore(); set slot_bytes to the largest "
          "size that it will have");
    to[member] = landing.bytes(member).data();
    landing.begin(member, Version::from_word(version));
  }
  begun_ = version;
  filled_steps_ = 0;
  busy_ = true;
  lengths_bytes_ = terms.lengths_bytes;
  pacer_.begin(chunk_bytes, *std::max_element(lengths_bytes_.begin(), lengths_bytes_.end()));
  plan_.emplace(schedule::ExchangeRequest{lengths_bytes_, chunk_bytes * words_.size() * settings_.buffers,
                                          settings_.buffers, settings_.grain_bytes});
  path_->begin({version, *plan_, memory_->pieces.at(version).bytes.data(), std::move(to),
                [this, version](std::uint64_t filled, std::uint64_t landed) { progress(version, filled, landed); },
                [this, version] { done(version); }});
}

// Without the lock, as all that is called by the path.
void GpuPath::progress(std::uint64_t version, std::uint64_t filled_steps, std::uint64_t landed_steps) {
  const Lock lock(mutex_);
  for (std::size_t member = 0; member < words_.size(); ++member)
    if (is_member(member))
      memory_->landing.landed(member, std::min(landed_steps * plan_->chunk_bytes(), lengths_bytes_[member]));
  filled_steps_ = filled_steps;
  agreement_.ended(version, landed_steps, plan_->steps());
  pacer_.landed(seconds_of(Clock::now()), landed_steps);
  go_on();
  ring_();
}

void GpuPath::done(std::uint64_t version) {
  const Lock lock(mutex_);
  busy_ = false;
  if (plan_->steps() == 0) agreement_.ended(version, 0, 0);
  go_on();
}

void GpuPath::failed(const std::string& why, bool is_stuck) {
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

void GpuPath::fail(const std::string& why) {
  if (std::exchange(has_failed_, true)) return;
  is_held_.store(false, std::memory_order_relaxed);
  news_ = "checkpoints go from host to host in this life: " + why;
  has_news_.store(true, std::memory_order_release);
  agreement_.give_up();
  memory_->landing.board().fail(why);
  tell();
  changed_.notify_all();
}

void GpuPath::tell() {
  arena::PathWord& own = *words_[memory_->landing.member()];
  own.state = agreement_.own();
  if (told_ == own) return;
  told_ = own;
  memory_->landing.board().tell(own);
  ring_();
}

void GpuPath::end(const std::string& why) {
  std::shared_ptr<device::Path> path;
  {
    const Lock lock(mutex_);
    fail(why);
    path = std::move(path_);
  }
  path.reset();  // without the lock, which it takes to tell
  const Lock lock(mutex_);
  if (!is_stuck_) memory_->pieces.clear();
}

std::optional<std::string> GpuPath::take_news() {
  if (!has_news_.load(std::memory_order_acquire)) return std::nullopt;
  const Lock lock(mutex_);
  has_news_.store(false, std::memory_order_relaxed);
  return std::move(news_);
}

}  // namespace ckpt::engine
