// How ranks meet: each listens under its own name and goes to those of lower ranks.
#include "communicator.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "../double/launch.hpp"
#include "faults.hpp"

namespace nccl_double {
namespace {

struct Hello {
  int ranks;
  int rank;
};

// Of a name that no file has, and that goes with the socket.
struct Address {
  Address(const std::string& name, int rank) {
    const std::string text = name + "-" + std::to_string(rank);
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size_bytes;
};

int make_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

struct Registry {
  std::mutex mutex;
  std::set<Communicator*> all;
};
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

// Whether the thread that it belongs to still is.
struct ThreadGuard {
  ~ThreadGuard() { *is_alive = false; }
  std::shared_ptr<std::atomic<bool>> is_alive = std::make_shared<std::atomic<bool>>(true);
};
thread_local const ThreadGuard thread_guard;

}  // namespace

std::vector<std::shared_ptr<Communicator>> communicators() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::shared_ptr<Communicator>> all;
  for (Communicator* const one : registry().all)
    if (auto shared = one->weak_from_this().lock()) all.push_back(std::move(shared));
  return all;
}

Communicator::Communicator(std::string name, int ranks, int rank) : name_(std::move(name)), ranks_(ranks), rank_(rank) {
  ++counters().communicators;
  const std::lock_guard lock(registry().mutex);
  registry().all.insert(this);
}

Communicator::~Communicator() {
  const std::lock_guard lock(registry().mutex);
  registry().all.erase(this);
}

void Communicator::issued_here() {
  const std::lock_guard lock(mutex_);
  issuer_is_alive_ = thread_guard.is_alive;
}

void Communicator::begin() {
  issued_here();
  thread_ = std::thread([this] { work(); });
  enqueue([this] { meet(); });
}

nccl::Result Communicator::state() const {
  if (const int failure = faults().failure[rank_]; failure != 0) return static_cast<nccl::Result>(failure);
  for (const nccl::Result error : {error_.load(), refusal_.load()})
    if (error != nccl::success) return error;
  return pending_ ? nccl::in_progress : nccl::success;
}

void Communicator::fail(nccl::Result result) {
  nccl::Result none = nccl::success;
  error_.compare_exchange_strong(none, result);
}

void Communicator::refuse(nccl::Result result) {
  nccl::Result none = nccl::success;
  refusal_.compare_exchange_strong(none, result);
}

bool Communicator::failed() const { return faults().failure[rank_] != 0 || error_ != nccl::success; }

bool Communicator::stopped() const { return aborted_ || cuda_double::dead(); }

void Communicator::enqueue(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  pending_ = true;
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Communicator::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return aborted_ || !jobs_.empty(); });
    if (aborted_) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    pending_ = false;
  }
}

int Communicator::connect_to(int peer) const {
  const Address address(name_, peer);
  while (!stopped()) {
    const int socket = make_socket();
    const Hello hello{ranks_, rank_};
    if (::connect(socket, address.get(), address.size_bytes) == 0 &&
        ::send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello))
      return socket;
    ::close(socket);
    wait_a_little();
  }
  return -1;
}

void Communicator::accept_others(int listener) {
  while (!stopped() && links_.size() + 1 < static_cast<std::size_t>(ranks_)) {
    pollfd waiting{listener, POLLIN, 0};
    if (::poll(&waiting, 1, 1) <= 0) continue;
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello{};
    const bool said = ::recv(socket, &hello, sizeof(hello), MSG_WAITALL) == sizeof(hello);
    if (said && hello.ranks == ranks_ && hello.rank > rank_ && hello.rank < ranks_ && !links_.contains(hello.rank)) {
      links_.emplace(hello.rank, std::make_unique<Link>(socket));
      continue;
    }
    ::close(socket);
    if (said) return fail(nccl::invalid_usage);
  }
}

void Communicator::meet() {
  const std::lock_guard lock(running_);
  const int listener = make_socket();
  const Address address(name_, rank_);
  if (::bind(listener, address.get(), address.size_bytes) != 0 || ::listen(listener, ranks_) != 0) {
    fail(nccl::invalid_usage);  // two have one rank
  } else {
    for (int peer = 0; peer < rank_ && !stopped(); ++peer)
      if (const int socket = connect_to(peer); socket >= 0) links_.emplace(peer, std::make_unique<Link>(socket));
    accept_others(listener);
  }
  ::close(listener);
}

bool Communicator::connected(const std::set<Link*>& links) {
  const std::lock_guard lock(wires_);
  for (Link* const link : links)
    if (link->progress() == Link::State::broken) fail(nccl::remote_error);
  return std::all_of(links.begin(), links.end(), [](const Link* link) { return link->connected(); });
}

void Communicator::connect(const Operations& operations) {
  std::set<Link*> unknown;
  {
    const std::lock_guard lock(wires_);
    for (const Operation& operation : operations)
      if (operation.peer != rank_) unknown.insert(links_.at(operation.peer).get());
    std::erase_if(unknown, [](const Link* link) { return link->connected(); });
    for (Link* const link : unknown) link->connect();
  }
  while (!connected(unknown) && !failed() && !stopped()) wait_a_little();
}

void Communicator::launch(Operations operations, CUstream stream) {
  issued_here();
  enqueue([this, operations = std::move(operations), stream] {
    while (faults().launches_held && !stopped()) wait_a_little();
    connect(operations);
    if (stopped() || failed()) return;
    ++counters().groups;
    // What is on the stream keeps this communicator.
    const auto kernel = [self = shared_from_this(), operations] { self->run(operations); };
    if (cuda_double::launch(stream, kernel) != CUDA_SUCCESS) fail(nccl::unhandled_cuda_error);
  });
}

void Communicator::abort() {
  ++counters().aborts;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(faults().abort_pause_us);
  while (faults().aborts_held || std::chrono::steady_clock::now() < until) wait_a_little();
  thread_.join();
  if (!*issuer_is_alive_) ++counters().orphans;
  const std::lock_guard lock(running_);
  links_.clear();
  --counters().communicators;
}

void Communicator::die() {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  for (const auto& [peer, link] : links_) link->die();
}

}  // namespace nccl_double
