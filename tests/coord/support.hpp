// Helpers for the tests of coordination stores.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "coord/store.hpp"

namespace ckpt::test {

// Runs `body` in a child process and then ends that process.
template <class Body>
pid_t fork_child(Body body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    body();
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

inline int exit_status(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

// Calls what must fail. Returns the sentence of the Failure, and its status.
template <class Call>
std::string failure_of(Call call, ckpt_status* status = nullptr) {
  try {
    call();
    return "no failure";
  } catch (const Failure& failure) {
    if (status != nullptr) *status = failure.status();
    return failure.what();
  }
}

// Adds one to the number that a record holds, `rounds` times, against others who do the same.
inline void count_up(coord::Store& store, int rounds) {
  for (int i = 0; i < rounds;) {
    const auto current = store.get("counter");
    const int value = current ? std::stoi(current->value) : 0;
    if (store.put_if("counter", std::to_string(value + 1), current ? current->revision : 0)) ++i;
  }
}

// Collects what a watch reports: the newest record of each key.
class Notified {
 public:
  auto listener() {
    return [this](const coord::Entry& entry) {
      const std::lock_guard lock(mutex_);
      ++count_;
      newest_[entry.key] = entry;
      changed_.notify_all();
    };
  }
  // Waits until `key` was told to have this value.
  bool becomes(const std::string& key, const std::string& value) {
    return wait(
        [&] { return newest_.contains(key) && newest_.at(key).value == value && newest_.at(key).revision != 0; });
  }
  bool is_removed(const std::string& key) {
    return wait([&] { return newest_.contains(key) && newest_.at(key).revision == 0; });
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  template <class Condition>
  bool wait(Condition holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), holds);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, coord::Entry> newest_;
  std::size_t count_ = 0;
};

}  // namespace ckpt::test
