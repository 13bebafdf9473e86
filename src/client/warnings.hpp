// Warnings tells the caller of trouble that made no call fail. It passes each warning to the caller's callback. While
// there is no callback, it keeps the newest few warnings. Only the training thread uses it.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "ckptengine/ckptengine.h"

namespace ckpt::client {

class Warnings {
 public:
  static constexpr std::size_t kept_max = 16;

  void add(ckpt_warning warning, const std::string& text) {
    if (callback_ != nullptr) return callback_(warning, text.c_str(), user_);
    kept_.emplace_back(warning, text);
    if (kept_.size() > kept_max) kept_.pop_front();
  }

  void on_warning(ckpt_warning_callback callback, void* user) {
    callback_ = callback;
    user_ = user;
    if (callback == nullptr) return;
    for (const auto& [warning, text] : std::exchange(kept_, {})) callback(warning, text.c_str(), user);
  }

 private:
  ckpt_warning_callback callback_ = nullptr;
  void* user_ = nullptr;
  std::deque<std::pair<ckpt_warning, std::string>> kept_;
};

}  // namespace ckpt::client
