#include "net/fetching.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::net {
namespace {

// How long receives under way may go on after a fetch has failed. Then Fetching fails the link.
constexpr std::int64_t drain_ms = 250;

}  // namespace

struct Fetching::Fetch {
  wire::FetchRequest asked;
  std::shared_ptr<Link> link;
  std::shared_ptr<Sink> sink;
  std::int64_t timeout_ms = 0;
  std::int64_t deadline_ms = 0;
  std::int64_t progressed_at_ms = 0;
  std::int64_t ending_since_ms = 0;
  State state = State::asked;
  FetchEnd how = FetchEnd::complete;
  wire::FetchAnswer answer;
  std::span<std::byte> memory;
  std::vector<bool> taken;     // grains received or being received
  std::size_t bytes_left = 0;  // bytes that have not arrived yet
  std::size_t receives = 0;    // receives under way
  bool owes_room = false;      // the source waits until this side says that there is room
};

void Fetching::start(const std::shared_ptr<Link>& link, const PieceName& piece, const FetchPart& part,
                     std::shared_ptr<Sink> sink, std::int64_t timeout_ms) {
  if (link == nullptr || piece.shard.size() > wire::shard_name_bytes_max) {
    sink->ended(link == nullptr ? FetchEnd::peer_failed : FetchEnd::refused);
    return;
  }
  auto fetch = std::make_shared<Fetch>();
  fetch->asked.request = ++last_request_;
  fetch->asked.checkpoint = piece.checkpoint;
  fetch->asked.first_byte = part.first_byte;
  fetch->asked.size_bytes = part.size_bytes;
  fetch->asked.shard_bytes = static_cast<std::uint32_t>(piece.shard.size());
  fetch->asked.wishes = (part.manifest ? wire::wants_manifest : 0) | (part.urgent ? wire::is_urgent : 0);
  fetch->asked.chain = part.chain;
  fetch->link = link;
  fetch->sink = std::move(sink);
  fetch->progressed_at_ms = now_ms();
  fetch->timeout_ms = std::max<std::int64_t>(timeout_ms, 0);
  fetch->deadline_ms = fetch->progressed_at_ms + fetch->timeout_ms;
  fetches_[fetch->asked.request] = fetch;
  if (link->failed()) {
    end(fetch, link->failure());
    return;
  }
  auto name = std::make_shared<const std::string>(piece.shard);
  link->when_proven([link = link.get(), request = fetch->asked, name] {
    link->send(wire::kind_fetch_request, request, std::as_bytes(std::span(*name)), name);
  });
}

Fetching::FetchPtr Fetching::find(const std::shared_ptr<Link>& link, std::uint64_t request) const {
  const auto found = fetches_.find(request);
  return found == fetches_.end() || found->second->link != link ? nullptr : found->second;
}

void Fetching::answered(const std::shared_ptr<Link>& link, Arrival& arrival) {
  const auto answer = wire::decode<wire::FetchAnswer>(arrival.header);
  if (!answer || !wire::plausible(*answer, arrival.payload_bytes)) return;
  const FetchPtr fetch = find(link, answer->request);
  if (fetch == nullptr || fetch->state == State::ending) return;
  if (answer->status == wire::Status::waiting) return postpone(fetch);
  const bool is_given_up = fetch->state != State::asked && answer->status == wire::Status::not_there;
  if (is_given_up) return end(fetch, FetchEnd::not_there);  // the source received the piece itself, and that failed
  if (fetch->state != State::asked || !wire::within(*answer, fetch->asked)) return;
  fetch->progressed_at_ms = now_ms();
  switch (answer->status) {
    case wire::Status::waiting:
      break;
    case wire::Status::not_there:
      return end(fetch, FetchEnd::not_there);
    case wire::Status::refused:
      return end(fetch, FetchEnd::refused);
    case wire::Status::found:
      break;
  }
  fetch->answer = *answer;
  fetch->state = State::reading_manifest;
  link->read(arrival, [this, fetch](std::span<const std::byte> manifest) {
    if (fetch->state == State::reading_manifest) begin(fetch, manifest);
  });
}

void Fetching::begin(const FetchPtr& fetch, std::span<const std::byte> manifest) {
  const std::size_t data_bytes = fetch->answer.data_bytes;
  const auto memory = fetch->sink->begin(manifest, data_bytes);
  if (!memory || memory->size() != data_bytes) return end(fetch, FetchEnd::refused);
  fetch->memory = *memory;
  fetch->bytes_left = data_bytes;
  fetch->taken.assign(wire::grain_count(data_bytes), false);
  fetch->state = State::receiving;
  fetch->progressed_at_ms = now_ms();
  if (fetch->bytes_left == 0) return end(fetch, FetchEnd::complete);
  fetch->link->send(wire::kind_accept, wire::Control{fetch->asked.request});
}

void Fetching::chunk_arrived(const std::shared_ptr<Link>& link, Arrival& arrival) {
  const auto chunk = wire::decode<wire::Chunk>(arrival.header);
  if (!chunk) return;
  const FetchPtr fetch = find(link, chunk->request);
  if (fetch == nullptr || fetch->state != State::receiving) return;
  const std::size_t size = arrival.payload_bytes;
  if (!wire::plausible(*chunk, size, fetch->memory.size(), fetch->answer.chunk_bytes)) return;
  const auto first = fetch->taken.begin() + static_cast<std::ptrdiff_t>(chunk->offset / wire::grain_bytes);
  const auto last = first + static_cast<std::ptrdiff_t>(wire::grain_count(size));
  if (std::find(first, last, true) != last) return;
  std::fill(first, last, true);
  ++fetch->receives;
  link->receive(
      arrival, fetch->memory.subspan(chunk->offset, size),
      [this, fetch, offset = std::size_t{chunk->offset}, size](bool ok) { receive_finished(fetch, offset, size, ok); });
}

void Fetching::receive_finished(const FetchPtr& fetch, std::size_t offset, std::size_t size, bool ok) {
  --fetch->receives;
  if (fetch->state == State::ending) return over_if_drained(fetch);
  if (!ok) return end(fetch, fetch->link->failure());
  fetch->progressed_at_ms = now_ms();
  fetch->sink->received(offset, size);
  fetch->bytes_left -= size;
  acknowledge(fetch, offset);
  if (fetch->bytes_left == 0) end(fetch, FetchEnd::complete);
}

// The source has said that it waits, for its turn or for an idle network. So it lives and will go on: the time limits
// begin anew.
void Fetching::postpone(const FetchPtr& fetch) {
  fetch->progressed_at_ms = now_ms();
  fetch->deadline_ms = fetch->progressed_at_ms + fetch->timeout_ms;
}

void Fetching::acknowledge(const FetchPtr& fetch, std::size_t offset) {
  const bool has_room = fetch->bytes_left == 0 || fetch->sink->backlog() < backlog_max(*fetch);
  if (!has_room && !std::exchange(fetch->owes_room, true)) ++owing_;
  fetch->link->send(wire::kind_received, wire::Received{fetch->asked.request, offset, has_room ? 1u : 0u});
}

// How many chunks may have arrived without being verified. More of them if the source sends smaller ones.
std::size_t Fetching::backlog_max(const Fetch& fetch) const {
  const std::size_t chunk_bytes = std::max<std::size_t>(fetch.answer.chunk_bytes, wire::grain_bytes);
  return options_.sub_buffers * std::max<std::size_t>(options_.chunk_bytes / chunk_bytes, 1);
}

void Fetching::pump() {
  if (owing_ == 0) return;
  for (const auto& [request, fetch] : fetches_) {
    if (!fetch->owes_room || fetch->sink->backlog() >= backlog_max(*fetch)) continue;
    fetch->owes_room = false;
    --owing_;
    fetch->progressed_at_ms = now_ms();
    fetch->link->send(wire::kind_room, wire::Control{request});
  }
}

void Fetching::end(const FetchPtr& fetch, FetchEnd how) {
  if (fetch->state == State::ending) return;
  const bool source_must_know =
      how == FetchEnd::timed_out || (how == FetchEnd::refused && fetch->state != State::asked);
  fetch->state = State::ending;
  fetch->how = how;
  fetch->ending_since_ms = now_ms();
  if (std::exchange(fetch->owes_room, false)) --owing_;
  if (source_must_know && fetch->link->proven())
    fetch->link->send(wire::kind_cancel, wire::Control{fetch->asked.request});
  over_if_drained(fetch);
}

void Fetching::over_if_drained(const FetchPtr& fetch) {
  if (fetch->receives != 0) return;
  fetches_.erase(fetch->asked.request);
  const auto sink = std::exchange(fetch->sink, nullptr);
  sink->ended(fetch->how);
}

void Fetching::link_down(const std::shared_ptr<Link>& link) {
  std::vector<FetchPtr> concerned;
  for (const auto& [request, fetch] : fetches_) {
    if (fetch->link == link) concerned.push_back(fetch);
  }
  for (const auto& fetch : concerned) end(fetch, link->failure());
}

// How long the fetch may be without progress. Longer while the source waits for room, because then this side is slow.
std::int64_t Fetching::wait_limit_ms(const Fetch& fetch) const {
  return fetch.owes_room ? wire::room_timeout * options_.progress_timeout_ms : options_.progress_timeout_ms;
}

void Fetching::tick() {
  const std::int64_t now = now_ms();
  std::vector<FetchPtr> late, unwanted;
  for (const auto& [request, fetch] : fetches_) {
    if (fetch->state == State::ending) {
      if (now - fetch->ending_since_ms > drain_ms) fetch->link->fail(FetchEnd::timed_out);
    } else if (!fetch->sink->wanted()) {
      unwanted.push_back(fetch);
    } else if (now >= fetch->deadline_ms || now - fetch->progressed_at_ms > wait_limit_ms(*fetch)) {
      late.push_back(fetch);
    }
  }
  for (const auto& fetch : unwanted) end(fetch, FetchEnd::refused);
  for (const auto& fetch : late) end(fetch, FetchEnd::timed_out);
}

}  // namespace ckpt::net
