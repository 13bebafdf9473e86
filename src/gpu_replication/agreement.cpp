#include "src/gpu_replication/agreement.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::schedule {

void Agreement::receive(std::uint32_t member, const State& state) {
  if (member >= states_.size() || member == member_) return;
  State& known = states_[member];
  if (state.checkpoint > known.checkpoint) {
    const bool has_given_up = known.has_given_up || state.has_given_up;
    known = state;
    known.has_given_up = has_given_up;
  } else {
    if (state.checkpoint == known.checkpoint) known.promised = std::max(known.promised, state.promised);
    known.has_given_up = known.has_given_up || state.has_given_up;
  }
  settle();
}

void Agreement::offer(std::uint64_t checkpoint, std::uint64_t length_bytes, std::uint64_t chunk_bytes) {
  next_ = State{checkpoint, length_bytes, chunk_bytes, 0, false};
  settle();
}

void Agreement::promise(std::uint64_t checkpoint, std::uint64_t steps) {
  State& own = states_[member_];
  if (own.checkpoint != checkpoint || checkpoint == 0) return;
  own.promised = std::max(own.promised, steps);
  settle();
}

void Agreement::ended(std::uint64_t checkpoint, std::uint64_t steps, std::uint64_t of) {
  if (own().checkpoint != checkpoint) return;
  ended_ = std::max(ended_, steps);
  is_over_ = ended_ == of;
  settle();
}

std::optional<Agreement::Terms> Agreement::terms() const {
  Terms terms{{}, own().chunk_bytes};
  for (const State& state : states_) {
    if (state.checkpoint != own().checkpoint || state.checkpoint == 0) return std::nullopt;
    terms.lengths_bytes.push_back(state.length_bytes);
    terms.chunk_bytes = std::min(terms.chunk_bytes, state.chunk_bytes);
  }
  return terms;
}

bool Agreement::has_given_up() const {
  return std::any_of(states_.begin(), states_.end(), [](const State& state) { return state.has_given_up; });
}

void Agreement::settle() {
  allow();
  if (!next_ || !may_go_on()) return;
  State& own = states_[member_];
  next_->has_given_up = own.has_given_up;
  own = *std::exchange(next_, std::nullopt);
  allowed_ = ended_ = 0;
  is_over_ = false;
  allow();
}

void Agreement::allow() {
  if (!terms() || has_given_up()) return;
  const auto least = std::min_element(states_.begin(), states_.end(),
                                      [](const State& a, const State& b) { return a.promised < b.promised; });
  allowed_ = std::max(allowed_, least->promised);
}

bool Agreement::may_go_on() const {
  if (is_over_) return true;
  const auto has_gone_on = [&](const State& state) { return state.checkpoint > own().checkpoint; };
  return ended_ == allowed_ && (ended_ == own().promised || std::any_of(states_.begin(), states_.end(), has_gone_on));
}

}  // namespace ckpt::schedule
