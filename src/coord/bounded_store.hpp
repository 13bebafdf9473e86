// BoundedStore is a Store that passes each call to another Store, with a deadline. The call fails at the deadline even
// if the other store never answers, such as a directory on a mount whose server is gone.
//
// Calls run on a separate thread. If that thread hangs, the next call uses a new thread. The old thread ends when the
// store answers at last. While four or more threads hang, a new one starts at most once in ten times `timeout_ms`, and
// none while 64 hang. Calls that get no thread fail at once.
//
// Thread-safe. Calls from several threads run one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/leavable_thread.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

// The limits for one call. A call to a directory makes a few system calls. EtcdClient ends each call earlier itself
// (EtcdAccess::timeout_ms), so etcd_timeout_ms is only for the case that it hangs.
inline constexpr std::int64_t directory_timeout_ms = 5000;
inline constexpr std::int64_t etcd_timeout_ms = 20'000;

// Returns the failure to throw if a store did not answer for `timeout_ms`. `store` is its name in messages.
Failure no_answer(const std::string& store, std::int64_t timeout_ms);

// Runs `body` on a new thread and returns its result. Throws what `body` throws, or no_answer() after `timeout_ms`. The
// thread may then still run, so `body` must own all that it uses. `store` is the store's name in messages.
template <class Body>
auto within(std::int64_t timeout_ms, const std::string& store, Body body) {
  using Result = std::invoke_result_t<Body&>;
  struct Answer {
    std::optional<Result> result;
    std::exception_ptr failure;
  };
  const auto answer = std::make_shared<Answer>();
  LeavableThread thread("ckpt-store", [answer, body = std::move(body)]() mutable {
    try {
      answer->result.emplace(body());
    } catch (...) {
      answer->failure = std::current_exception();
    }
  });
  if (!thread.join(Deadline::in_ms(timeout_ms))) throw no_answer(store, timeout_ms);
  if (answer->failure) std::rethrow_exception(answer->failure);
  return std::move(*answer->result);
}

class BoundedStore : public Store {
 public:
  // `name` is the name of `store` in messages. `timeout_ms` is the limit for one call.
  BoundedStore(std::shared_ptr<Store> store, std::string name, std::int64_t timeout_ms);
  ~BoundedStore() override;  // does not wait for calls under way, which fail
  BoundedStore(const BoundedStore&) = delete;
  BoundedStore& operator=(const BoundedStore&) = delete;

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  std::unique_ptr<Watch> watch(std::function<void(const Entry&)> on_change) override;

  // [any thread] Makes all calls fail from now on, also those under way.
  void give_up();

 private:
  struct Shared;
  struct Lane;

  template <class Body>
  auto call(Body body);
  void run(std::function<void()> body);

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const std::int64_t timeout_ms_;
  const std::shared_ptr<Shared> shared_;
  // Guarded by shared_'s mutex.
  std::shared_ptr<Lane> lane_;
  Deadline next_thread_ = Deadline::in_ms(0);  // when the next thread may start while many hang
};

}  // namespace ckpt::coord
