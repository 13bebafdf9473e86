#include "net/serving.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::net {
namespace {

constexpr std::size_t serves_max = 8;
constexpr std::size_t waiting_max = 1024;

}  // namespace

struct Serving::Serve {
  std::shared_ptr<Link> link;
  wire::FetchRequest asked;
  PieceName piece;
  Source source;  // what was asked for of it
  std::size_t chunk_bytes = 0;
  std::size_t next_offset = 0;
  std::size_t in_flight = 0;  // chunks in UCX's hands
  bool accepted = false;
  bool cancelled = false;
  std::int64_t noted_at_ms = 0;  // when the asker was last heard of, or last told to wait

  bool sent() const { return next_offset == source.data.size(); }
  bool over() const { return in_flight == 0 && (cancelled || sent()); }
};

Serving::ServePtr Serving::find(const std::shared_ptr<Link>& link, const Arrival& arrival) const {
  const auto control = wire::decode<wire::Control>(arrival.header);
  if (!control) return nullptr;
  const auto named = [&](const ServePtr& serve) {
    return serve->link == link && serve->asked.request == control->request;
  };
  if (const auto found = std::find_if(active_.begin(), active_.end(), named); found != active_.end()) return *found;
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), named);
  return found == waiting_.end() ? nullptr : *found;
}

void Serving::requested(const std::shared_ptr<Link>& link, Arrival& arrival) {
  const auto request = wire::decode<wire::FetchRequest>(arrival.header);
  if (!request || !wire::plausible(*request, arrival.payload_bytes)) return;
  link->read(arrival, [this, link, request](std::span<const std::byte> name) { enqueue(link, *request, name); });
}

void Serving::enqueue(const std::shared_ptr<Link>& link, const wire::FetchRequest& request,
                      std::span<const std::byte> name) {
  if (link->failed()) return;
  auto serve = std::make_shared<Serve>();
  serve->link = link;
  serve->asked = request;
  serve->piece.shard.assign(reinterpret_cast<const char*>(name.data()), name.size());
  serve->piece.version = request.version;
  if (waiting_.size() >= waiting_max) {
    answer(*serve, wire::Status::refused);
    return;
  }
  waiting_.push_back(std::move(serve));
}

void Serving::answer(const Serve& serve, wire::Status status) {
  wire::FetchAnswer answer;
  answer.request = serve.asked.request;
  answer.status = status;
  if (status != wire::Status::found) {
    serve.link->send(wire::kind_fetch_answer, answer);
    return;
  }
  answer.data_bytes = serve.source.data.size();
  answer.chunk_bytes = serve.chunk_bytes;
  answer.manifest_bytes = static_cast<std::uint32_t>(serve.source.manifest.size());
  serve.link->send(wire::kind_fetch_answer, answer, serve.source.manifest, serve.source.pin);
}

void Serving::open(const ServePtr& serve) {
  auto source = serve_(serve->link->peer(), serve->piece);
  if (source) {
    source->data = wire::range_of(serve->asked, source->data);
    if (serve->asked.manifest == 0) source->manifest = {};
  }
  if (!source || source->manifest.size() > wire::manifest_bytes_max) {
    answer(*serve, source ? wire::Status::refused : wire::Status::not_there);
    return;
  }
  serve->source = std::move(*source);
  serve->chunk_bytes = std::max(options_.chunk_bytes, wire::chunk_bytes_min);
  serve->noted_at_ms = now_ms();
  answer(*serve, wire::Status::found);
  if (!serve->sent()) active_.push_back(serve);
}

void Serving::accepted(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  if (const auto serve = find(link, arrival); serve != nullptr) serve->accepted = true;
}

void Serving::cancelled(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  if (const auto serve = find(link, arrival); serve != nullptr) serve->cancelled = true;
}

void Serving::link_down(const std::shared_ptr<Link>& link) {
  for (const auto& serve : active_) serve->cancelled |= serve->link == link;
  for (const auto& serve : waiting_) serve->cancelled |= serve->link == link;
}

void Serving::pump() {
  active_.remove_if([](const ServePtr& serve) { return serve->over(); });
  while (active_.size() < serves_max && !waiting_.empty()) {
    const ServePtr next = std::move(waiting_.front());
    waiting_.pop_front();
    if (!next->cancelled) open(next);
  }
  const std::size_t in_flight_max = std::max<std::size_t>(options_.chunks_in_flight, 1);
  for (const auto& serve : active_) {
    while (serve->accepted && !serve->cancelled && !serve->sent() && serve->in_flight < in_flight_max) {
      send_chunk(serve);
    }
  }
}

// Every byte of every piece leaves here: the place to pace or postpone.
void Serving::send_chunk(const ServePtr& serve) {
  const std::size_t offset = serve->next_offset;
  const std::size_t size = std::min(serve->chunk_bytes, serve->source.data.size() - offset);
  serve->next_offset += size;
  ++serve->in_flight;
  serve->link->send(wire::kind_chunk, wire::Chunk{serve->asked.request, offset},
                    serve->source.data.subspan(offset, size), serve->source.pin, [serve](bool ok) {
                      --serve->in_flight;
                      if (!ok) serve->cancelled = true;
                    });
}

void Serving::tick() {
  const std::int64_t now = now_ms();
  for (const auto& serve : active_) {
    // An asker that has been answered and neither accepts nor cancels must not hold the piece.
    if (!serve->accepted && now - serve->noted_at_ms > options_.progress_timeout_ms) serve->cancelled = true;
  }
  for (const auto& serve : waiting_) {
    if (serve->cancelled || now - serve->noted_at_ms < options_.progress_timeout_ms / 3) continue;
    serve->noted_at_ms = now;
    answer(*serve, wire::Status::waiting);
  }
}

}  // namespace ckpt::net
