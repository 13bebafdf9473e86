#include "coord/bounded_store.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>

namespace ckpt::coord {
namespace {

// From left_behind_soon hanging threads on, a new one is tried only seldom. There are at most left_behind_max. Some may
// hang for good, as on a mount that was replaced.
constexpr int left_behind_soon = 4;
constexpr int left_behind_max = 64;
constexpr std::int64_t seldom = 10;  // in time limits of one call

}  // namespace

Failure no_answer(const std::string& store, std::int64_t timeout_ms) {
  return {CKPT_ERR_TIMEOUT, "the coordination store " + store + " has not answered for " +
                                std::to_string(timeout_ms / 1000) +
                                " s; if it is on a mount, check the mount's server"};
}

struct BoundedStore::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool gave_up = false;
  int left_behind = 0;  // hanging threads
};

// A thread and the call that it runs now.
struct BoundedStore::Lane {
  struct Call {
    std::function<void()> body;
    bool is_done = false;
    std::exception_ptr failure;
  };
  std::shared_ptr<Call> call;
  bool is_left = false;
  std::optional<LeavableThread> thread;

  static void serve(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Lane>& lane) {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->changed.wait(lock, [&] { return lane->call != nullptr || lane->is_left; });
      if (lane->call == nullptr) return;
      const auto call = lane->call;
      lock.unlock();
      try {
        call->body();
      } catch (...) {
        call->failure = std::current_exception();
      }
      call->body = nullptr;
      lock.lock();
      call->is_done = true;
      lane->call = nullptr;
      if (lane->is_left) --shared->left_behind;
      shared->changed.notify_all();
    }
  }
};

BoundedStore::BoundedStore(std::shared_ptr<Store> store, std::string name, std::int64_t timeout_ms)
    : store_(std::move(store)), name_(std::move(name)), timeout_ms_(timeout_ms), shared_(std::make_shared<Shared>()) {}

BoundedStore::~BoundedStore() {
  give_up();
  const std::lock_guard lock(shared_->mutex);
  if (lane_ == nullptr) return;
  if (lane_->call != nullptr) ++shared_->left_behind;
  lane_->is_left = true;
  shared_->changed.notify_all();
}

void BoundedStore::give_up() {
  const std::lock_guard lock(shared_->mutex);
  shared_->gave_up = true;
  shared_->changed.notify_all();
}

void BoundedStore::run(std::function<void()> body) {
  const Deadline deadline = Deadline::in_ms(timeout_ms_);
  std::unique_lock lock(shared_->mutex);
  const auto wait_until = [&](auto holds) {
    shared_->changed.wait_until(lock, deadline.at(), [&] { return shared_->gave_up || holds(); });
    if (shared_->gave_up)
      throw Failure(CKPT_ERR_TIMEOUT,
                    "this agent is ending, so it makes no more calls to the coordination store " + name_);
    return holds();
  };
  if (!wait_until([&] { return lane_ == nullptr || lane_->call == nullptr; })) throw no_answer(name_, timeout_ms_);
  if (lane_ == nullptr) {
    const bool is_soon = shared_->left_behind >= left_behind_soon && !next_thread_.passed();
    if (is_soon || shared_->left_behind >= left_behind_max) throw no_answer(name_, timeout_ms_);
    next_thread_ = Deadline::in_ms(seldom * timeout_ms_);
    const auto lane = std::make_shared<Lane>();
    lane->thread.emplace("ckpt-store", [shared = shared_, lane] { Lane::serve(shared, lane); });
    lane_ = lane;
  }
  const auto lane = lane_;
  const auto call = std::make_shared<Lane::Call>(Lane::Call{std::move(body), false, nullptr});
  lane->call = call;
  shared_->changed.notify_all();
  bool is_done = false;
  try {
    is_done = wait_until([&] { return call->is_done; });
  } catch (const Failure&) {
    if (!call->is_done) throw;
    is_done = true;
  }
  if (is_done) {
    if (call->failure) std::rethrow_exception(call->failure);
    return;
  }
  lane->is_left = true;
  ++shared_->left_behind;
  lane_ = nullptr;
  throw no_answer(name_, timeout_ms_);
}

template <class Body>
auto BoundedStore::call(Body body) {
  using Result = std::invoke_result_t<Body&, Store&>;
  const auto result = std::make_shared<std::optional<Result>>();
  run([result, store = store_, body = std::move(body)]() mutable { result->emplace(body(*store)); });
  return std::move(**result);
}

std::optional<Entry> BoundedStore::get(const std::string& key) {
  return call([key](Store& store) { return store.get(key); });
}

std::optional<std::uint64_t> BoundedStore::put_if(const std::string& key, const std::string& value,
                                                  std::uint64_t expected) {
  return call([=](Store& store) { return store.put_if(key, value, expected); });
}

std::vector<Entry> BoundedStore::list(const std::string& prefix) {
  return call([prefix](Store& store) { return store.list(prefix); });
}

std::vector<std::string> BoundedStore::keys(const std::string& prefix) {
  return call([prefix](Store& store) { return store.keys(prefix); });
}

void BoundedStore::remove(const std::string& key) {
  call([key](Store& store) {
    store.remove(key);
    return true;
  });
}

// Needs no deadline: it returns at once, because the watch works on a thread of its own.
std::unique_ptr<Watch> BoundedStore::watch(std::function<void(const Entry&)> on_change) {
  return store_->watch(std::move(on_change));
}

}  // namespace ckpt::coord
