#include "agent/trainers/trainer_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "agent/trainers/request_codec.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

using core::Rank;
using nlohmann::json;

constexpr std::size_t connections_max = 1024;
constexpr std::int64_t longest_poll_ms = 1000;
constexpr std::int64_t claim_poll_ms = 20;  // no descriptor reports that a process is stopped

}  // namespace

struct TrainerServer::PendingClaim {
  core::TrainerHello hello;
  Claimant claimant;
  Deadline deadline;
};

struct TrainerServer::Connection {
  Connection(std::uint64_t connection_id, FrameSocket connected) : id(connection_id), socket(std::move(connected)) {}

  const std::uint64_t id;
  FrameSocket socket;
  std::optional<Asker> asker;  // after an admitted hello
  bool busy = false;           // a request waits for its answer; the next one is not read before
  bool closing = false;
  std::optional<PendingClaim> claim;
};

// Answers from other threads, until the server's thread takes them. Outlives the server if an answer is late.
class TrainerServer::Outbox {
 public:
  Outbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_errno(CKPT_ERR_SYSTEM, "cannot make an eventfd");
  }
  int fd() const { return wake_.get(); }

  void put(std::uint64_t connection, Reply reply) {
    {
      const std::lock_guard lock(mutex_);
      replies_.emplace_back(connection, std::move(reply));
    }
    wake();
  }
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));  // a full counter wakes as well
  }
  std::vector<std::pair<std::uint64_t, Reply>> take() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    return std::exchange(replies_, {});
  }

 private:
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, Reply>> replies_;
};

TrainerServer::TrainerServer(const Options& options, TrainerRequests& requests, Log log)
    : options_(options),
      requests_(requests),
      log_(std::move(log)),
      listener_(std::make_unique<FrameListener>(options.node_dir() + "/agent.sock")),
      claims_(options.node_dir()),
      outbox_(std::make_shared<Outbox>()),
      thread_(start_thread("ckptd-socket", [this] { run(); })) {}

TrainerServer::~TrainerServer() {
  stop_.store(true);
  outbox_->wake();
  thread_.join();
}

void TrainerServer::listen_again() {
  listen_again_.store(true);
  outbox_->wake();
}

void TrainerServer::make_listener() {
  listener_.reset();
  listener_ = std::make_unique<FrameListener>(options_.node_dir() + "/agent.sock");
  listen_again_.store(false);
}

void TrainerServer::run() {
  while (!stop_.load()) {
    try {
      poll_once();
    } catch (const std::exception& error) {
      log_->error("cannot serve the trainers' socket, and keeps trying: {}", error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // probably out of descriptors
    }
  }
  deliver();  // the answer to "stop"
}

void TrainerServer::poll_once() {
  std::vector<pollfd> entries = {{outbox_->fd(), POLLIN, 0}};
  if (listen_again_.load()) make_listener();
  if (connections_.size() < connections_max && listener_) entries.push_back({listener_->fd(), POLLIN, 0});
  for (const int fd : claims_.process_fds()) entries.push_back({fd, POLLIN, 0});
  std::int64_t timeout = std::min(longest_poll_ms, claims_.sweep_due_ms());
  for (const Connection& connection : connections_) {
    const int events = POLLRDHUP | (connection.busy ? 0 : POLLIN) | (connection.socket.wants_write() ? POLLOUT : 0);
    entries.push_back({connection.socket.fd(), static_cast<short>(events), 0});
    if (connection.claim) timeout = std::min(timeout, claim_poll_ms);
  }
  ::poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(timeout, 1)));

  deliver();
  auto entry = entries.end() - static_cast<std::ptrdiff_t>(connections_.size());
  for (Connection& connection : connections_) {
    const short events = (entry++)->revents;
    const bool is_left = (events & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
    if (!connection.busy || !is_left) serve(connection);        // also what it sent before it left: a goodbye
    if (connection.busy && is_left) connection.closing = true;  // nobody waits for the answer or the rank
  }
  settle_claims();
  sweep();
  for (Connection& connection : connections_)
    if (connection.closing) close(connection);
  connections_.remove_if([](const Connection& connection) { return connection.closing; });
  accept_all();
}

void TrainerServer::accept_all() {
  while (connections_.size() < connections_max && listener_) {
    auto socket = listener_->accept();
    if (!socket) return;
    connections_.emplace_back(next_connection_++, std::move(*socket));
  }
}

void TrainerServer::serve(Connection& connection) {
  try {
    connection.socket.flush();
    while (!connection.busy && !connection.closing) {
      const auto frame = connection.socket.try_receive();
      if (!frame) break;
      connection.busy = true;
      try {
        handle(connection, frame->body);
      } catch (const Failure& failure) {
        answer(connection, {failure.status(), failure.what(), json::object(), {}});
      }
    }
    connection.closing = connection.closing || (connection.socket.closed() && !connection.busy);
  } catch (const Failure&) {
    connection.closing = true;  // it is gone, or speaks another protocol
  }
}

void TrainerServer::handle(Connection& connection, const json& request) {
  const std::string type = request_type(request);
  if (type == "hello") return on_hello(connection, request);
  if (type == "status") return requests_.status(respond_to(connection));
  if (type == "health") return requests_.health(respond_to(connection));
  if (type == "trace") return requests_.trace(respond_to(connection));
  if (type == "stop") return requests_.stop(respond_to(connection));
  on_trainer_request(connection, type, request);
}

void TrainerServer::warn_of_other(Rank rank, const char* option, const std::optional<std::string>& asked,
                                  const std::string& counts) const {
  if (asked && *asked != counts)
    log_->warn("rank {} asks for {} {}, but this agent was started with {} and keeps to that", rank, option, *asked,
               counts);
}

void TrainerServer::on_hello(Connection& connection, const json& request) {
  if (connection.asker)
    refuse_request("this connection belongs to rank " + std::to_string(connection.asker->rank) +
                   " already; run ckptd and libckptengine of one version");
  if (const std::string job = hello_job(request); job != options_.job)
    throw Failure(CKPT_ERR_NO_AGENT, "the agent of node " + options_.node + " serves job " + options_.job + ", not " +
                                         job + "; give trainer and agent the same options job and arena_dir");
  HelloRequest wanted = hello_request(request);
  core::TrainerHello& hello = wanted.hello;
  warn_of_other(hello.rank, "protection", wanted.protection, options_.protection_name());
  warn_of_other(hello.rank, "placement", wanted.placement,
                options_.placement ? std::string(placement::name(*options_.placement)) : "auto");
  const auto on_suspicion = [](bool halts) { return halts ? "halt" : "report"; };
  warn_of_other(hello.rank, "on_suspicion", on_suspicion(hello.halts),
                on_suspicion(options_.on_suspicion == OnSuspicion::halt));
  const auto capture = [](auto mode) {
    const auto known = static_cast<CaptureMode>(mode);
    return known == CaptureMode::every ? "every" : known == CaptureMode::jit ? "jit" : "auto";
  };
  warn_of_other(hello.rank, "capture", capture(hello.capture), capture(options_.capture));
  warn_of_other(hello.rank, "capture_every", std::to_string(hello.capture_every),
                std::to_string(options_.capture_every));
  // The kernel says which process this is; the trainer's word does not count.
  Claimant claimant{hello.rank,
                    hello.instance,
                    hello.incarnation,
                    hello.main_shard,
                    hello.private_shard,
                    Process::open(connection.socket.peer().pid),
                    std::move(wanted.open_engines)};
  if (!claimant.process)
    refuse_request(
        "the agent cannot see the trainer's process; run both in one container, or with one process namespace");
  connection.claim.emplace(PendingClaim{std::move(hello), std::move(claimant),
                                        Deadline::in_ms(wanted.claim_timeout_ms.value_or(options_.claim_timeout_ms))});
}

void TrainerServer::settle_claims() {
  for (Connection& connection : connections_) {
    if (!connection.claim || connection.closing) continue;
    PendingClaim& pending = *connection.claim;
    Claims::Answer verdict;
    try {
      const std::int64_t pid = pending.claimant.process->pid();
      verdict = claims_.claim(pending.claimant);
      if (verdict.retired_instance) requests_.exited({pending.hello.rank, *verdict.retired_instance}, false);
      if (verdict.verdict == Claims::Verdict::admitted) {
        connection.asker = Asker{pending.hello.rank, pending.hello.instance};
        const auto hello = pending.hello;
        connection.claim.reset();
        requests_.hello(hello, pid, respond_to(connection));
        continue;
      }
    } catch (const Failure& failure) {
      connection.claim.reset();
      answer(connection, {failure.status(), failure.what(), json::object(), {}});
      continue;
    }
    const bool superseded = verdict.verdict == Claims::Verdict::superseded;
    if (!superseded && !pending.deadline.passed()) continue;
    connection.claim.reset();
    answer(connection, {superseded ? CKPT_ERR_SUPERSEDED : CKPT_ERR_CLAIMED, verdict.why, json::object(), {}});
  }
}

void TrainerServer::sweep() {
  for (const Claims::Retired& gone : claims_.sweep()) {
    requests_.exited({gone.rank, gone.instance}, gone.died);
    for (Connection& connection : connections_)  // a forked child may keep the connection open
      if (connection.asker && connection.asker->instance == gone.instance) connection.closing = true;
  }
}

void TrainerServer::on_trainer_request(Connection& connection, const std::string& type, const json& request) {
  if (type == "bye") {
    const Asker gone = connection.asker ? *connection.asker : bye_request(request);
    claims_.closed(gone.rank, gone.instance, connection.socket.peer().pid);
    return answer(connection, {});
  }
  if (!connection.asker)
    refuse_request("the trainer's first request is \"" + type +
                   "\" instead of \"hello\"; run ckptd and libckptengine of one version");
  const Asker asker = *connection.asker;
  if (type == "restore") {
    requests_.restore(asker, restore_request(request), respond_to(connection));
  } else if (type == "restored") {
    requests_.restored(asker, restored_request(request), respond_to(connection));
  } else if (type == "corrupt") {
    const CorruptRequest corrupt = corrupt_request(request);
    requests_.corrupt(asker, corrupt, corrupt.timeout_ms.value_or(options_.restore_timeout_ms), respond_to(connection));
  } else if (type == "reserve") {
    requests_.reserve(asker, reserve_request(request), respond_to(connection));
  } else if (type == "trouble") {
    requests_.trouble(asker, trouble_request(request), respond_to(connection));
  } else {
    refuse_request("this agent does not know the request \"" + type +
                   "\"; run ckptd, ckptctl and libckptengine of one version");
  }
}

Respond TrainerServer::respond_to(Connection& connection) {
  return [outbox = outbox_, id = connection.id](Reply reply) { outbox->put(id, std::move(reply)); };
}

void TrainerServer::deliver() {
  for (auto& [id, reply] : outbox_->take()) {
    const auto asker = std::find_if(connections_.begin(), connections_.end(),
                                    [id = id](const Connection& connection) { return connection.id == id; });
    if (asker != connections_.end()) answer(*asker, std::move(reply));  // otherwise it is gone
  }
}

void TrainerServer::answer(Connection& connection, Reply reply) {
  json body = std::move(reply.fields);
  body["status"] = static_cast<int>(reply.status);
  body["message"] = reply.message;
  std::vector<int> fds;
  for (const UniqueFd& fd : reply.fds) fds.push_back(fd.get());
  connection.busy = false;
  try {
    if (!connection.socket.queue(body, fds)) connection.closing = true;
    connection.socket.flush();
  } catch (const Failure&) {
    connection.closing = true;
  }
}

void TrainerServer::close(Connection& connection) {
  if (!connection.asker) return;
  // The trainer may be back already, over a new connection.
  const bool back = std::any_of(connections_.begin(), connections_.end(), [&](const Connection& other) {
    return &other != &connection && !other.closing && other.asker &&
           other.asker->instance == connection.asker->instance;
  });
  if (!back) claims_.disconnected(connection.asker->rank, connection.asker->instance);
}

}  // namespace ckpt::agent
