#include "net/serving.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ckpt::net {
namespace {

constexpr std::size_t serves_max = 8;  // most requests served at once; the same number again for urgent ones
constexpr std::size_t waiting_max = 1024;
// A node that restores may ask for a piece that is neither here nor coming. Its request waits this long for the piece,
// then it is refused.
constexpr std::int64_t arrival_wait_ms = 1000;
// This node may lose its own source in the middle of a piece. A request for the piece waits this long for further
// bytes, then it is refused.
constexpr std::int64_t interruption_ms = 2000;
// The largest chunk for a node that restores. A node that passes a piece on is behind the node before it by one chunk.
constexpr std::size_t restore_chunk_bytes = 512u << 10;

}  // namespace

struct Serving::Serve {
  std::shared_ptr<Link> link;
  wire::FetchRequest asked;
  PieceName piece;
  ServedPiece source;  // the requested range of the piece
  std::size_t chunk_bytes = 0;
  std::size_t next_offset = 0;
  std::size_t data_bytes = 0;   // size of the range
  std::size_t ready_bytes = 0;  // of the range
  bool interrupted = false;     // no more bytes come to this node, so `source` is empty; they may come again
  std::optional<std::size_t> interrupted_at;  // next_offset when that last happened
  struct UnderWay {
    std::size_t offset = 0;
    std::size_t size_bytes = 0;
    Clock::time_point begin;
    bool alone = false;  // no other chunk was under way so far
  };
  std::vector<UnderWay> under_way;  // chunks sent and not acknowledged
  std::size_t in_hands = 0;         // chunks whose send has not ended
  bool accepted = false;
  bool has_room = true;  // the asker has room for another chunk
  bool cancelled = false;
  std::int64_t noted_at_ms = 0;                              // when a frame last came from the asker or went to it
  std::int64_t waits_until_ms = now_ms() + arrival_wait_ms;  // for its piece, unless that is said to be coming
  std::int64_t looked_at_ms = 0;                             // when its piece was last looked for

  Asker asker() const { return {link->peer(), asked.chain}; }
  bool urgent() const { return (asked.wishes & wire::is_urgent) != 0; }
  // Whoever restores asks for the whole piece, or for all that it lacks at the end. A request for another range comes
  // from a decoder, which has other sources.
  bool restores() const { return urgent() && asked.size_bytes == UINT64_MAX; }
  bool may_wait_for_arrival() const { return restores() && now_ms() < waits_until_ms; }
  bool may_send() const { return accepted && has_room && !cancelled && !sent() && is_ready(); }
  // All bytes of the next chunk may be sent.
  bool is_ready() const { return ready_bytes >= std::min(next_offset + chunk_bytes, data_bytes); }
  bool sent() const { return next_offset == data_bytes; }
  void take(ServedPiece served) {
    source = std::move(served);
    data_bytes = source.data.size();
    ready_bytes = source.ready_bytes ? 0 : data_bytes;
  }
  std::size_t bytes_under_way() const {
    return std::accumulate(under_way.begin(), under_way.end(), std::size_t{0},
                           [](std::size_t sum, const UnderWay& sent) { return sum + sent.size_bytes; });
  }
  bool over() const { return in_hands == 0 && (cancelled || (sent() && under_way.empty())); }
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
  serve->piece.checkpoint = request.checkpoint;
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

// Returns false if the piece is not here, but is coming or may be about to arrive. Looks for it at most once in a
// millisecond.
bool Serving::open(const ServePtr& serve) {
  if (std::exchange(serve->looked_at_ms, now_ms()) == now_ms()) return false;
  auto source = serve_(serve->asker(), serve->piece);
  if (source && source->is_coming) {
    source.reset();
    serve->waits_until_ms = now_ms() + arrival_wait_ms;  // if that fails, this node may soon begin anew
  }
  if (!source && serve->may_wait_for_arrival()) return false;
  if (source) {
    source->data = wire::range_of(serve->asked, source->data);
    if ((serve->asked.wishes & wire::wants_manifest) == 0) source->manifest = {};
  }
  if (!source || source->manifest.size() > wire::manifest_bytes_max) {
    answer(*serve, source ? wire::Status::refused : wire::Status::not_there);
    return true;
  }
  serve->take(std::move(*source));
  const std::size_t chunk_max =
      serve->restores() ? std::min(options_.chunk_bytes, restore_chunk_bytes) : options_.chunk_bytes;
  serve->chunk_bytes = wire::grain_bytes * std::max<std::size_t>(chunk_max / wire::grain_bytes, 1);
  serve->noted_at_ms = now_ms();
  answer(*serve, wire::Status::found);
  if (!serve->sent()) active_.push_back(serve);
  return true;
}

void Serving::open_all() {
  std::vector<ServePtr> not_here;
  while (const ServePtr next = take_waiting()) {
    if (!open(next)) not_here.push_back(next);
  }
  awaits_bytes_ = !not_here.empty();
  waiting_.insert(waiting_.begin(), not_here.begin(), not_here.end());
}

// Asks how much of the piece has arrived here. If no more will, the asker learns it, and asks another node.
void Serving::follow_arrival(Serve& serve) {
  if (serve.interrupted && !serve.cancelled) go_on(serve);
  if (!serve.source.ready_bytes || serve.cancelled || serve.ready_bytes == serve.data_bytes) return;
  const auto ready_bytes = serve.source.ready_bytes();
  if (!ready_bytes) return interrupt(serve);
  const std::uint64_t before = std::min<std::uint64_t>(serve.asked.first_byte, *ready_bytes);
  serve.ready_bytes = std::min<std::size_t>(*ready_bytes - before, serve.data_bytes);
  awaits_bytes_ = awaits_bytes_ || !serve.is_ready();
}

// A node that restores need not begin anew: this node may soon fetch the rest of the piece from another source.
void Serving::interrupt(Serve& serve) {
  serve.source = {};
  serve.ready_bytes = 0;
  serve.interrupted = true;
  const bool has_sent_more = std::exchange(serve.interrupted_at, serve.next_offset) != serve.next_offset;
  if (has_sent_more) serve.waits_until_ms = now_ms() + interruption_ms;
  go_on(serve);
}

// Looks for the piece again, at most once in a millisecond.
void Serving::go_on(Serve& serve) {
  awaits_bytes_ = true;
  if (std::exchange(serve.looked_at_ms, now_ms()) == now_ms()) return;
  auto source = serve.may_wait_for_arrival() ? serve_(serve.asker(), serve.piece) : std::nullopt;
  if (source && !source->is_coming && (!source->ready_bytes || source->ready_bytes())) {
    source->data = wire::range_of(serve.asked, source->data);
    if (source->data.size() == serve.data_bytes) {
      serve.interrupted = false;
      serve.take(std::move(*source));
      return;
    }
  }
  if (serve.may_wait_for_arrival()) return;
  serve.cancelled = true;
  answer(serve, wire::Status::not_there);
}

void Serving::accepted(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  if (const auto serve = find(link, arrival); serve != nullptr) serve->accepted = true;
}

void Serving::cancelled(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  if (const auto serve = find(link, arrival); serve != nullptr) serve->cancelled = true;
}

void Serving::received(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  const auto received = wire::decode<wire::Received>(arrival.header);
  if (!received) return;
  const auto is_it = [&](const ServePtr& each) {
    return each->link == link && each->asked.request == received->request;
  };
  const auto serve = std::find_if(active_.begin(), active_.end(), is_it);
  if (serve == active_.end()) return;
  auto& under_way = (*serve)->under_way;
  const auto found = std::find_if(under_way.begin(), under_way.end(),
                                  [&](const Serve::UnderWay& sent) { return sent.offset == received->offset; });
  if (found == under_way.end()) return;
  if (pacer_ != nullptr)
    pacer_->received({link->peer(), (*serve)->piece, found->size_bytes, found->begin, Clock::now(), found->alone});
  under_way.erase(found);
  --under_way_;
  (*serve)->has_room = received->room != 0;
  (*serve)->noted_at_ms = now_ms();
}

void Serving::has_room(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  const auto serve = find(link, arrival);
  if (serve == nullptr) return;
  serve->has_room = true;
  serve->noted_at_ms = now_ms();
}

void Serving::link_down(const std::shared_ptr<Link>& link) {
  for (const auto& serve : active_) serve->cancelled |= serve->link == link;
  for (const auto& serve : waiting_) serve->cancelled |= serve->link == link;
}

// Takes the next waiting request that may be served now; null if there is none.
Serving::ServePtr Serving::take_waiting() {
  std::erase_if(waiting_, [](const ServePtr& serve) { return serve->cancelled; });
  const auto is_urgent = [](const ServePtr& serve) { return serve->urgent(); };
  const auto urgent = static_cast<std::size_t>(std::count_if(active_.begin(), active_.end(), is_urgent));
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const ServePtr& serve) {
    return (serve->urgent() ? urgent : active_.size() - urgent) < serves_max;
  });
  if (found == waiting_.end()) return nullptr;
  ServePtr next = *found;
  waiting_.erase(found);
  return next;
}

void Serving::pump() {
  active_.remove_if([this](const ServePtr& serve) {
    if (serve->cancelled) under_way_ -= std::exchange(serve->under_way, {}).size();
    return serve->over();
  });
  open_all();
  for (const auto& serve : active_) follow_arrival(*serve);
  held_ = false;
  // The oldest request comes first: if it may not send, no later one may. One complete piece protects, half pieces do
  // not.
  bool is_shut = false;
  for (const auto& serve : active_) {
    while ((serve->urgent() || !is_shut) && serve->may_send() && has_share(*serve)) {
      const std::size_t size = allowed_bytes(*serve);
      if (size != 0) {
        send_chunk(serve, size);
        continue;
      }
      is_shut = true;
      break;
    }
  }
}

// True if the limit on chunks under way leaves room for the next one. All pieces that one node restores share the
// limit. So they arrive one after the other, and a node that passes them on has them in the same order.
bool Serving::has_share(const Serve& serve) const {
  const std::size_t chunks_max = std::max<std::size_t>(options_.chunks_in_flight, 1);
  if (!serve.restores()) return serve.under_way.size() < chunks_max;
  std::size_t under_way_bytes = 0;
  for (const auto& other : active_) {
    if (other->restores() && other->link == serve.link) under_way_bytes += other->bytes_under_way();
  }
  return under_way_bytes + serve.chunk_bytes <= std::max(chunks_max * options_.chunk_bytes, serve.chunk_bytes);
}

// The most bytes that the next chunk may have; 0: do not send now.
std::size_t Serving::allowed_bytes(const Serve& serve) {
  const std::size_t left = serve.data_bytes - serve.next_offset;
  const std::size_t most = std::min(serve.chunk_bytes, left);
  if (pacer_ == nullptr || serve.urgent()) return most;
  const std::size_t allowed = pacer_->allow(left, under_way_);
  held_ = allowed == 0 && under_way_ == 0;
  return allowed >= most ? most : allowed / wire::grain_bytes * wire::grain_bytes;
}

// The only place from which pieces leave this node.
void Serving::send_chunk(const ServePtr& serve, std::size_t size_bytes) {
  const std::size_t offset = serve->next_offset;
  serve->next_offset += size_bytes;
  for (const auto& other : active_)
    for (Serve::UnderWay& sent : other->under_way) sent.alone = false;
  serve->under_way.push_back({offset, size_bytes, Clock::now(), under_way_ == 0});
  ++under_way_;
  ++serve->in_hands;
  serve->noted_at_ms = now_ms();
  serve->link->send(wire::kind_chunk, wire::Chunk{serve->asked.request, offset},
                    serve->source.data.subspan(offset, size_bytes), serve->source.pin, [serve](bool ok) {
                      --serve->in_hands;
                      if (!ok) serve->cancelled = true;
                    });
}

std::optional<std::int64_t> Serving::ask_again_us() const {
  return held_ ? std::optional(pacer_->ask_again_us()) : std::nullopt;
}

void Serving::tick() {
  const std::int64_t now = now_ms();
  for (const auto& serve : active_) {
    // Gives up an asker that does not accept, acknowledge or cancel, so that the piece does not stay pinned.
    const std::int64_t silent_ms = now - serve->noted_at_ms;
    if (!serve->accepted || !serve->under_way.empty()) {
      if (silent_ms > options_.progress_timeout_ms) serve->cancelled = true;
    } else if (!serve->has_room) {
      if (silent_ms > wire::room_timeout * options_.progress_timeout_ms) serve->cancelled = true;
    } else if (silent_ms >= options_.progress_timeout_ms / 3) {
      serve->noted_at_ms = now;
      answer(*serve, wire::Status::waiting);
    }
  }
  for (const auto& serve : waiting_) {
    if (serve->cancelled || now - serve->noted_at_ms < options_.progress_timeout_ms / 3) continue;
    serve->noted_at_ms = now;
    answer(*serve, wire::Status::waiting);
  }
}

}  // namespace ckpt::net
