#include "src/gpu_replication/exchange.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {
namespace {

// The reserved memory R holds the sent and the received chunks of p steps.
std::uint64_t chunk_bytes_of(const ExchangeRequest& request, std::uint32_t places) {
  if (request.buffers == 0)
    throw std::invalid_argument(
        "an exchange has 0 buffers: this is a bug in ckptengine; report it with the agent's log");
  if (request.grain_bytes == 0)
    throw std::invalid_argument(
        "an exchange has grains of 0 bytes: this is a bug in ckptengine; report it with the agent's log");
  const std::uint64_t share_bytes = request.reserved_bytes / request.buffers / places;
  if (share_bytes < request.grain_bytes)
    throw std::invalid_argument("an exchange of " + std::to_string(request.lengths_bytes.size()) + " members in " +
                                std::to_string(request.buffers) + " buffers needs more than the " +
                                std::to_string(request.reserved_bytes) +
                                " bytes reserved for it; raise the option gpu_replication_bytes");
  return share_bytes / request.grain_bytes * request.grain_bytes;
}

}  // namespace

ExchangePlan::ExchangePlan(const ExchangeRequest& request)
    : lengths_bytes_(request.lengths_bytes), buffers_(request.buffers) {
  if (lengths_bytes_.empty())
    throw std::invalid_argument(
        "an exchange has 0 members: this is a bug in ckptengine; report it with the agent's log");
  chunk_bytes_ = chunk_bytes_of(request, places());
  const std::uint64_t longest_bytes = *std::max_element(lengths_bytes_.begin(), lengths_bytes_.end());
  steps_ = longest_bytes / chunk_bytes_ + (longest_bytes % chunk_bytes_ == 0 ? 0 : 1);
}

ExchangeTransfer ExchangePlan::transfer(bool is_send, std::uint32_t peer, std::uint32_t sender,
                                        std::uint64_t number) const {
  const std::uint64_t length_bytes = lengths_bytes_[sender];
  const std::uint64_t first_byte = std::min(number * chunk_bytes_, length_bytes);
  return {is_send, peer, first_byte, std::min(chunk_bytes_, length_bytes - first_byte)};
}

// Every member begins with its own neighbour, so that they do not all send to the same member first.
std::vector<ExchangeTransfer> ExchangePlan::step(std::uint32_t member, std::uint64_t number) const {
  const std::uint32_t count = members(), first = count == 1 ? 0 : 1;
  std::vector<ExchangeTransfer> transfers;
  if (number >= steps_) return transfers;  // the product of number and chunk may overflow there
  for (std::uint32_t distance = first; distance < count; ++distance) {
    const std::uint32_t next = (member + distance) % count, previous = (member + count - distance) % count;
    transfers.push_back(transfer(true, next, member, number));
    transfers.push_back(transfer(false, previous, previous, number));
  }
  return transfers;
}

}  // namespace ckpt::schedule
