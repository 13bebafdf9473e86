// UpdateHabit judges whether a training loop calls before_update() before it changes tensors. The engine cannot see a
// change of tensors, so it goes by what the loop has done so far. Some loops look at their tickets, and call
// before_update() only after snapshots that were taken, not after those that were left out. So a loop is trusted after
// a snapshot of one kind only if it was seen to call before_update() after an earlier snapshot of that kind. A loop
// that has ever forgotten the call is not trusted. Only the training thread uses it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace ckpt::client {

class UpdateHabit {
 public:
  // before_update() was called.
  void asked() {
    has_asked_after_[rests_after_.value_or(taken)] = true;
    rests_after_.reset();
  }
  // The engine lets the tensors change for another reason, such as a registration.
  void left_rest() { rests_after_.reset(); }
  // snapshot() was called. Returns true if the loop has not called before_update() since the last snapshot(), and this
  // is the first time.
  bool began_snapshot(std::uint64_t incarnation) {
    const bool is_first = !has_forgotten();
    if (rests_after_ && incarnation == incarnation_) has_forgotten_after_[*rests_after_] = true;
    incarnation_ = incarnation;
    return is_first && has_forgotten();
  }
  // The tensors rest from now on.
  void ended_snapshot(bool is_taken) { rests_after_ = is_taken ? taken : left_out; }

  // True if neither asked() nor left_rest() was called since the last snapshot.
  bool rests() const { return rests_after_.has_value(); }
  // True if rests(), and the loop was seen to call before_update() before it changes the tensors.
  bool is_kept() const { return rests() && has_asked_after_[*rests_after_] && !has_forgotten(); }
  bool has_forgotten_after_taken() const { return has_forgotten_after_[taken]; }

 private:
  enum Kind : std::size_t { left_out, taken };
  bool has_forgotten() const { return has_forgotten_after_[left_out] || has_forgotten_after_[taken]; }

  std::array<bool, 2> has_asked_after_{};  // by Kind
  std::array<bool, 2> has_forgotten_after_{};
  std::optional<Kind> rests_after_;
  std::uint64_t incarnation_ = 0;  // of the newest snapshot
};

}  // namespace ckpt::client
