#include "net/transport.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/clock.hpp"
#include "net/command_queue.hpp"
#include "net/fetching.hpp"
#include "net/links.hpp"
#include "net/listener.hpp"
#include "net/serving.hpp"
#include "net/tcp_backend.hpp"

namespace ckpt::net {
namespace {

constexpr int tick_ms = 20;
constexpr std::int64_t sleep_us_max = 100'000;  // if a wake-up is lost, the thread wakes after this time
// The longest sleep while a source waits for room. Nothing wakes the thread when there is room again.
constexpr std::int64_t owing_sleep_us = 250;
constexpr std::int64_t awaiting_sleep_us = 1000;  // while requests wait for bytes that this node still receives
// The thread sleeps after so many rounds of progress without an event. More rounds pay if events come about as fast as
// a thread can be woken. Otherwise they would take time from training.
constexpr int idle_rounds = 2, idle_rounds_in_haste = 32;
constexpr std::chrono::microseconds hasty_sleep{50};
constexpr std::chrono::seconds other_way_complaint_every{60};  // least time between remarks about other transports

ListenerOptions listener_options(const TransportOptions& options, LinkBackend& backend) {
  ListenerOptions listener;
  listener.listen_on = with_port(local_address(options.interface), options.port);
  listener.timeout_ms = options.progress_timeout_ms;
  listener.proven = [&backend](const std::string& from) { backend.admit(from); };
  return listener;
}

// A message that is not sent or dropped yet. While the object exists, the message counts toward queue_limit.
class Message {
 public:
  Message(std::vector<std::byte> bytes, std::atomic<std::size_t>& count) : bytes_(std::move(bytes)), count_(count) {}
  ~Message() { count_.fetch_sub(1, std::memory_order_relaxed); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  const std::vector<std::byte> bytes_;
  std::atomic<std::size_t>& count_;
};

class LinkTransport final : public Transport, private BackendEvents {
 public:
  LinkTransport(const TransportOptions& options, Handlers handlers)
      : options_(options),
        handlers_(std::move(handlers)),
        backend_(make_backend(options_, *this)),
        links_(
            *backend_, options_, pending_connections_,
            [this](const std::shared_ptr<Link>& link, const std::string& address) { dial(link, address); },
            [this](const std::shared_ptr<Link>& link) { link_down(link); }),
        fetching_(options_),
        serving_(options_, handlers_.serve, handlers_.pacer),
        listener_({options_.job, options_.token, options_.node, options_.node_instance},
                  listener_options(options_, *backend_), backend_->place(), pending_connections_, taker(),
                  handlers_.remark),
        thread_([this] { run(); }) {}

  ~LinkTransport() override {
    commands_.push([this] { stopping_ = true; });
    thread_.join();
  }

  std::string address() const override { return listener_.address(); }
  UnauthenticatedPeers unauthenticated_peers() const override { return listener_.unauthenticated_peers(); }
  void probe(PeerId peer, std::uint64_t instance, const std::string& address,
             std::function<void(Reach)> done) override {
    listener_.dial(peer, instance, address,
                   [done = std::move(done)](const Listener::DialResult& on_dialed) { done(on_dialed.reach); });
  }
  std::string description() const override {
    return options_.transports + " over " + (options_.interface.empty() ? "all interfaces" : options_.interface) +
           ", listener at " + listener_.address() +
           (uses_streams(options_) ? ", no other port" : ", UCX at " + backend_->place()) +
           (backend_->is_open_to_unauthenticated_peers() ? ", which is open to unauthenticated peers" : "");
  }

  void set_peer(PeerId peer, std::uint64_t instance, const std::string& address) override {
    {
      const std::lock_guard lock(mutex_);
      known_.insert(peer);
    }
    commands_.push([this, peer, instance, address] { links_.set_peer(peer, instance, address); });
  }

  bool send(PeerId to, std::vector<std::byte> bytes) override {
    if (bytes.size() > options_.message_bytes_max) return false;
    {
      const std::lock_guard lock(mutex_);
      if (!known_.contains(to)) return false;
    }
    if (messages_.fetch_add(1, std::memory_order_relaxed) >= options_.queue_limit) {
      messages_.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    auto message = std::make_shared<const Message>(std::move(bytes), messages_);
    commands_.push([this, to, message = std::move(message)] { send_message(to, message); });
    return true;
  }

  void fetch(PeerId from, PieceName piece, FetchPart part, std::shared_ptr<Sink> sink,
             std::int64_t timeout_ms) override {
    commands_.push([this, from, piece = std::move(piece), part, sink = std::move(sink), timeout_ms] {
      fetching_.start(stopping_ ? nullptr : links_.to(from), piece, part, sink, timeout_ms);
    });
  }

 private:
  void run();
  void round();
  bool sleep();
  void shut_down();
  void tick_if_due();
  void send_message(PeerId to, const std::shared_ptr<const Message>& message);
  void dial(const std::shared_ptr<Link>& link, const std::string& address);
  void complain(const std::string& address);
  void link_down(const std::shared_ptr<Link>& link);
  Listener::OnMember taker();
  void arrived(wire::Kind kind, const std::shared_ptr<Link>& link, Arrival& arrival) override;
  bool has_room() override { return !stopping_ && links_.has_room(); }
  void joined(const std::shared_ptr<Link>& link) override { links_.joined(link); }

  const TransportOptions options_;
  const Handlers handlers_;

  std::mutex mutex_;
  std::unordered_set<PeerId> known_;
  std::atomic<std::size_t> messages_{0};
  CommandQueue commands_;
  PendingConnections pending_connections_;

  // Only the transport's thread uses these.
  const std::unique_ptr<LinkBackend> backend_;
  Links links_;
  Fetching fetching_;
  Serving serving_;
  std::int64_t ticked_at_ms_ = 0;
  bool stopping_ = false;

  Clock::time_point complains_again_at_ = {};  // only the listener's thread uses it
  Listener listener_;                          // its thread uses commands_ and pending_connections_
  std::thread thread_;
};

// Takes the connections of peers that have proven the token. Null if the backend does not want these connections.
Listener::OnMember LinkTransport::taker() {
  if (!backend_->wants_connections()) return nullptr;
  return [this](UniqueFd connection) {
    commands_.push(
        [this, member = std::make_shared<UniqueFd>(std::move(connection))] { backend_->take_in(std::move(*member)); });
  };
}

void LinkTransport::run() {
  int idle = 0, enough = idle_rounds;
  while (!stopping_) {
    if (!commands_.empty()) {
      commands_.run_all();
      idle = 0;
    }
    idle = backend_->progress() == 0 ? idle + 1 : 0;
    round();
    if (idle <= enough) continue;
    const auto slept_at = Clock::now();
    idle = sleep() ? 0 : enough;
    enough = Clock::now() - slept_at < hasty_sleep ? idle_rounds_in_haste : idle_rounds;
  }
  shut_down();
}

// Does the work that the callbacks have left.
void LinkTransport::round() {
  fetching_.pump();
  serving_.pump();
  tick_if_due();
  links_.sweep();
}

void LinkTransport::tick_if_due() {
  const std::int64_t now = now_ms();
  if (now - ticked_at_ms_ < tick_ms) return;
  ticked_at_ms_ = now;
  links_.tick();
  fetching_.tick();
  serving_.tick();
}

// Returns true if something has happened meanwhile, or may have.
bool LinkTransport::sleep() {
  if (!commands_.empty() || !backend_->arm()) return true;
  pollfd waits[] = {{backend_->event_fd(), POLLIN, 0}, {commands_.fd(), POLLIN, 0}};
  std::int64_t sleep_us = serving_.ask_again_us().value_or(sleep_us_max);
  const std::int64_t awaiting_us = serving_.awaits_bytes() ? awaiting_sleep_us : sleep_us_max;
  sleep_us = std::clamp<std::int64_t>(sleep_us, 1, fetching_.owes() ? owing_sleep_us : awaiting_us);
  const timespec time{0, sleep_us * 1000};
  return ::ppoll(waits, 2, &time, nullptr) != 0;
}

void LinkTransport::shut_down() {
  const std::int64_t deadline_ms = now_ms() + options_.progress_timeout_ms;
  links_.retire_all();
  while (now_ms() < deadline_ms) {
    backend_->progress();
    links_.sweep();
    if (links_.idle() && backend_->quiet()) break;
  }
  links_.end_operations();
  // Fetches that were requested since retire_all() end at once. A sink may then request another fetch. Such fetches
  // end, too, a few times in a row.
  for (int again = 0; again < 4 && !commands_.empty(); ++again) commands_.run_all();
}

void LinkTransport::send_message(PeerId to, const std::shared_ptr<const Message>& message) {
  const auto link = stopping_ ? nullptr : links_.to(to);
  if (link == nullptr) return;
  link->when_proven(
      [link = link.get(), message] { link->send_bytes(wire::kind_message, {}, message->bytes(), message, nullptr); });
}

void LinkTransport::dial(const std::shared_ptr<Link>& link, const std::string& address) {
  listener_.dial(link->peer(), link->peer_instance(), address,
                 [this, link, address](const Listener::DialResult& result) {
                   if (result.session && uses_streams(options_) != (result.place == TcpBackend::here()))
                     complain(address);
                   commands_.push([this, link, result] { links_.on_dialed(link, result); });
                 });
}

// Runs on the listener's thread.
void LinkTransport::complain(const std::string& address) {
  const auto now = Clock::now();
  if (!handlers_.remark || now < complains_again_at_) return;
  complains_again_at_ = now + other_way_complaint_every;
  handlers_.remark("this node and the one at " + address +
                   " use different transports for data; give both the same option transport");
}

void LinkTransport::link_down(const std::shared_ptr<Link>& link) {
  fetching_.link_down(link);
  serving_.link_down(link);
  const bool meant_a_peer = link->proven() || link->outgoing();
  if (meant_a_peer && !link->retired() && handlers_.peer_failed) handlers_.peer_failed(link->peer());
}

void LinkTransport::arrived(wire::Kind kind, const std::shared_ptr<Link>& link, Arrival& arrival) {
  if (kind == wire::kind_hello) return links_.hello(link, arrival);
  if (!link->unseal(arrival)) return;
  switch (kind) {
    case wire::kind_message:
      if (arrival.payload_bytes > options_.message_bytes_max) return;
      link->read(arrival, [this, peer = link->peer()](std::span<const std::byte> bytes) {
        if (handlers_.message) handlers_.message(peer, bytes);
      });
      return;
    case wire::kind_fetch_request:
      return serving_.requested(link, arrival);
    case wire::kind_fetch_answer:
      return fetching_.answered(link, arrival);
    case wire::kind_accept:
      return serving_.accepted(link, arrival);
    case wire::kind_chunk:
      return fetching_.chunk_arrived(link, arrival);
    case wire::kind_cancel:
      return serving_.cancelled(link, arrival);
    case wire::kind_received:
      return serving_.received(link, arrival);
    case wire::kind_room:
      return serving_.has_room(link, arrival);
    default:
      return;
  }
}

}  // namespace

std::unique_ptr<Transport> Transport::create(const TransportOptions& options, Handlers handlers) {
  return std::make_unique<LinkTransport>(options, std::move(handlers));
}

}  // namespace ckpt::net
