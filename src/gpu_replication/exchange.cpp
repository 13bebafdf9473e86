#include "src/gpu_replication/exchange.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "src/gpu_replication/parity_place.hpp"

namespace ckpt::schedule {
namespace {

constexpr const char* bug = ": this is a bug in ckptengine; report it with the agent's log";

std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) { return value / by + (value % by == 0 ? 0 : 1); }

// The reserved memory R holds the sent and the received chunks of p steps.
std::uint64_t chunk_bytes_of(const ExchangeRequest& request, const StepMemory& memory) {
  if (request.buffers == 0) throw std::invalid_argument(std::string("an exchange has 0 buffers") + bug);
  if (request.grain_bytes == 0) throw std::invalid_argument(std::string("an exchange has grains of 0 bytes") + bug);
  if (request.rows != 0 && request.grain_bytes % placement::parity_unit_bytes != 0)
    throw std::invalid_argument("an exchange with parity has grains of " + std::to_string(request.grain_bytes) +
                                " bytes, which are not whole leaves" + bug);
  const std::uint64_t chunk_bytes = memory.chunk_bytes(request.reserved_bytes / request.buffers, request.grain_bytes);
  if (chunk_bytes == 0)
    throw std::invalid_argument("an exchange of " + std::to_string(request.lengths_bytes.size()) + " members in " +
                                std::to_string(request.buffers) + " buffers needs more than the " +
                                std::to_string(request.reserved_bytes) +
                                " bytes reserved for it; raise the option gpu_replication_bytes");
  return chunk_bytes;
}

}  // namespace

ExchangePlan::ExchangePlan(const ExchangeRequest& request)
    : lengths_bytes_(request.lengths_bytes),
      memory_{static_cast<std::uint32_t>(request.lengths_bytes.size()), request.rows},
      buffers_(request.buffers) {
  if (lengths_bytes_.empty()) throw std::invalid_argument(std::string("an exchange has 0 members") + bug);
  if (request.rows != 0) layout_ = parity_layout(lengths_bytes_, request.rows);
  chunk_bytes_ = chunk_bytes_of(request, memory_);
  const std::uint64_t longest_bytes =
      layout_ ? layout_->segment_bytes() : *std::max_element(lengths_bytes_.begin(), lengths_bytes_.end());
  steps_per_row_ = divided_up(longest_bytes, chunk_bytes_);
  steps_ = steps_per_row_ * std::max(request.rows, 1u);
  sent_bytes_ = layout_ ? steps_ * chunk_bytes_ : longest_bytes;
}

ExchangePlan::RowStep ExchangePlan::row_step(std::uint64_t number) const {
  return {static_cast<std::uint32_t>(number / steps_per_row_), number % steps_per_row_ * chunk_bytes_};
}

// What the receiver gets of the sender's piece in this step.
placement::ByteRange ExchangePlan::chunk(std::uint32_t sender, std::uint32_t receiver, std::uint64_t number) const {
  placement::ByteRange whole{0, lengths_bytes_[sender]};
  std::uint64_t at = number * chunk_bytes_;
  if (layout_) {
    const RowStep step = row_step(number);
    const std::uint32_t stripe = layout_->stripe_of_row(receiver, step.row);
    const std::uint32_t position = (sender + 2 * members() - layout_->parity() - stripe) % members();
    whole = layout_->is_parity(position) ? placement::ByteRange{} : layout_->segment(sender, position);
    // The layout counts whole leaves, and the piece may end within one.
    whole.size_bytes =
        std::min(whole.size_bytes, lengths_bytes_[sender] - std::min(whole.first_byte, lengths_bytes_[sender]));
    at = step.first_byte;
  }
  at = std::min(at, whole.size_bytes);
  return {whole.first_byte + at, std::min(chunk_bytes_, whole.size_bytes - at)};
}

// Every member begins with its own neighbour, so that they do not all send to the same member first. Places: first
// those of chunks to be sent, then one for each other member, by its number.
std::vector<ExchangeTransfer> ExchangePlan::step(std::uint32_t member, std::uint64_t number) const {
  const std::uint32_t count = members(), first = count == 1 ? 0 : 1;
  std::vector<ExchangeTransfer> transfers;
  if (number >= steps_) return transfers;  // the product of number and chunk may overflow there
  const auto other = [&](std::uint32_t peer) { return peer > member ? peer - 1 : peer; };
  for (std::uint32_t distance = first; distance < count; ++distance) {
    const std::uint32_t next = (member + distance) % count, previous = (member + count - distance) % count;
    const placement::ByteRange sent = chunk(member, next, number), received = chunk(previous, member, number);
    transfers.push_back({true, next, sent.first_byte, sent.size_bytes, layout_ ? other(next) : 0});
    transfers.push_back(
        {false, previous, received.first_byte, received.size_bytes, (layout_ ? count - 1 : 1) + other(previous)});
  }
  return transfers;
}

EncodingStep ExchangePlan::encoding(std::uint32_t member, std::uint64_t number) const {
  const RowStep step = row_step(number);
  const std::uint32_t stripe = layout_->stripe_of_row(member, step.row);
  const std::uint64_t at = std::min(step.first_byte, layout_->parity_bytes(stripe));
  EncodingStep made{step.row,
                    layout_->row_offset(member, step.row) + at,
                    std::min(chunk_bytes_, layout_->parity_bytes(stripe) - at),
                    {}};
  for (std::uint32_t column = 0; column < layout_->columns(); ++column) {
    const std::uint32_t sender = layout_->member_at(stripe, column);
    made.sources.push_back(
        {members() - 1 + (sender > member ? sender - 1 : sender), chunk(sender, member, number).size_bytes});
  }
  return made;
}

std::uint64_t ExchangePlan::arrived_bytes(std::uint32_t sender, std::uint64_t steps) const {
  if (!layout_) return std::min(steps * chunk_bytes_, lengths_bytes_[sender]);
  if (steps >= steps_) return layout_->parity_bytes_of(sender);
  return encoding(sender, steps).first_byte;
}

}  // namespace ckpt::schedule
