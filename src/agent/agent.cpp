#include "agent/agent.hpp"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>

#include "agent/driver.hpp"
#include "agent/store_poller.hpp"
#include "agent/trainers/trainer_server.hpp"
#include "agent/transfers/recompute_source.hpp"
#include "base/error.hpp"
#include "base/private_files.hpp"
#include "base/thread.hpp"
#include "coord/bounded_store.hpp"
#include "coord/node_registry.hpp"
#include "coord/open_store.hpp"

namespace ckpt::agent {
namespace {

constexpr std::size_t offered_tasks_max = 4096;
constexpr unsigned digest_threads = 2;
constexpr std::chrono::seconds probe_timeout(5);
constexpr std::int64_t leaves_ms = 4000;  // an agent whose arena was removed notices within a quarter of a second

// The host of an address HOST:PORT.
std::string_view host_of(std::string_view address) { return address.substr(0, address.rfind(':')); }

// Larger than the id of any earlier agent. Two agents that start in the same millisecond still get different ids.
std::uint64_t start_id() {
  std::uint32_t random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random))
    throw_errno(CKPT_ERR_SYSTEM, "cannot get random bytes");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return static_cast<std::uint64_t>(now_ms) << 20 | (random & 0xfffff);
}

net::TransportOptions transport_options(const Options& options, std::uint32_t node, std::uint64_t arena_id,
                                        const std::string& token) {
  net::TransportOptions transport;
  transport.job = options.job;
  transport.token = token;
  transport.node = node;
  transport.node_instance = arena_id;
  transport.transports = options.transport;
  transport.interface = options.interface;
  transport.port = options.port;
  transport.chunk_bytes = options.chunk_bytes;
  transport.sub_buffers = options.sub_buffers;
  return transport;
}

// The token in the file that the option token_file names. Without that option, the token in the store. If the store has
// none, writes one there: the one this node remembers, or a new one.
std::string find_token(const Options& options, coord::Store& store, const std::string& remembered) {
  constexpr std::size_t digits = 64;
  constexpr std::string_view hex = "0123456789abcdef";
  if (options.token_file.empty()) return coord::job_token(store, remembered);
  std::string token = read_secret_file(options.token_file, "token_file");
  if (token.size() != digits || token.find_first_not_of(hex) != std::string::npos)
    throw Failure(CKPT_ERR_INVALID, "the file " + options.token_file +
                                        " (option token_file) does not hold a token of 64 hex digits in lower case; "
                                        "write a token with ckptctl token FILE, and copy that file to all nodes");
  return token;
}

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "another machine";
  return name.data();
}

std::optional<net::ServedPiece> serve(const PieceIndex& index, const ArrivingPieces& arriving,
                                      const net::PieceName& name, const net::Asker& asker) {
  if (auto record = serve_record(index, name)) return record;
  const auto find = [&] { return index.find(name.shard, CheckpointId::from_word(name.checkpoint)); };
  Pin piece = find();
  if (piece == nullptr) {
    if (auto served = arriving.find(name, asker)) return served;
    piece = find();  // it may have become whole between the two looks
  }
  if (piece == nullptr) return std::nullopt;
  return net::ServedPiece{piece->encoded_manifest(),
                          {piece->data(), piece->manifest().length_bytes},
                          std::const_pointer_cast<HeldPiece>(piece)};
}

}  // namespace

AgentSetup standard_setup(const Options& options, Log log) {
  return {options,
          coord::open_store(coord::StoreLocation(options), options.job),
          &net::Transport::create,
          std::move(log),
          {}};
}

// The parts are in order of use: each part uses parts above it, and ends before them.
struct Agent::Parts : AgentControl {
  explicit Parts(AgentSetup agent_setup);
  ~Parts() override;

  void stop(EndReason reason, const std::string& why) override {
    setup.log->info("the agent ends: {}", why);
    if (reason == EndReason::replaced) {
      const std::lock_guard lock(mutex);
      replaced = why;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_event.get(), &one, sizeof(one));
  }
  void listen_again() override { server->listen_again(); }
  net::Transport::Handlers handlers();
  void join_job();
  coord::NodeEntry own_entry() const;
  void refuse_if_served(const coord::NodeEntry& there);
  bool answers(const coord::NodeEntry& there);
  [[noreturn]] void refuse(const coord::NodeEntry& there);

  AgentSetup setup;
  const Options& options = setup.options;
  coord::BoundedStore store{
      std::move(setup.store), options.coordination,
      setup.store_timeout_ms != 0 ? setup.store_timeout_ms : coord::StoreLocation(options).timeout_ms()};
  std::mutex mutex;
  std::string replaced;  // guarded by the mutex
  UniqueFd stop_event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  arena::NodeArena arena;
  const std::uint64_t agent_id = start_id();
  const std::uint32_t node_id;
  const std::shared_ptr<CoreQueue> queue = std::make_shared<CoreQueue>(offered_tasks_max);
  PieceIndex index;
  ArrivingPieces arriving{node_id};
  ChunkBuffers buffers;
  TraceBuffer trace;
  Scheduler scheduler;
  WorkerPool digests{digest_threads};
  Driver driver;
  std::unique_ptr<net::Transport> transport;
  std::unique_ptr<StorePoller> store_poller;
  std::thread core_thread;
  std::unique_ptr<TrainerServer> server;
};

Agent::Parts::Parts(AgentSetup agent_setup)
    : setup(std::move(agent_setup)),
      arena(options.node_dir(), options.job, options.node),
      node_id(coord::node_id(store, options.node, arena.number())),
      scheduler(options, arena.directory(), trace),
      driver({options, arena, index, arriving, *queue, digests, buffers, scheduler, trace, setup.log, *this,
              setup.sources},
             node_id, agent_id) {
  const std::string token = find_token(options, store, arena.token());
  const std::string token_in_store = options.token_file.empty() ? token : "";
  arena.remember_place(node_id, token_in_store);
  if (!arena.damage().empty()) driver.remark(arena.damage());
  transport = setup.make_transport(transport_options(options, node_id, arena.arena_id(), token), handlers());
  join_job();
  // Tasks wait in the queue until the core thread runs. So nothing arrives before its receiver exists.
  StorePoller::Handlers store_handlers;
  store_handlers.leader = [this](const core::LeaderRecordRead& read) { driver.store_read(read); };
  store_handlers.incarnation_record = [this](const core::IncarnationRecordRead& read) { driver.store_read(read); };
  store_handlers.assignments = [this](const core::AssignmentsRead& read) { driver.store_read(read); };
  store_handlers.nodes = [this](const std::vector<coord::NodeEntry>& nodes) { driver.nodes_read(nodes); };
  store_handlers.notice = [this](const std::string& sentence) { driver.remark(sentence); };
  store_poller = std::make_unique<StorePoller>(store, options.lease_ms, std::move(store_handlers), setup.log,
                                               StorePoller::Own{own_entry(), token_in_store});
  driver.use(*transport, *store_poller);
  server = std::make_unique<TrainerServer>(options, driver.requests(), setup.log);
  core_thread = start_thread("ckptd-core", [this] { driver.run(); });
  setup.log->info("agent of node {} (number {}) of job {} serves {}, {}", options.node, node_id, options.job,
                  options.node_dir(), transport->description());
}

// The core thread ends first, because it uses all other parts. Tasks that other threads post from now on are dropped.
Agent::Parts::~Parts() {
  queue->close();
  if (core_thread.joinable()) core_thread.join();
  driver.end_transfers();
  server.reset();
  store.give_up();  // its thread may hang
  store_poller.reset();
  transport.reset();
}

net::Transport::Handlers Agent::Parts::handlers() {
  net::Transport::Handlers handlers;
  handlers.message = [this](net::PeerId from, std::span<const std::byte> message) {
    driver.message_arrived(from, message);
  };
  handlers.serve = [this](const net::Asker& asker, const net::PieceName& piece) {
    return serve(index, arriving, piece, asker);
  };
  handlers.peer_failed = [](net::PeerId) {};  // heartbeats decide who is alive
  handlers.pacer = &scheduler;
  handlers.remark = [log = setup.log](const std::string& sentence) { log->warn("{}", sentence); };
  return handlers;
}

coord::NodeEntry Agent::Parts::own_entry() const {
  return {options.node, node_id, arena.arena_id(), agent_id, ::getpid(), transport->address()};
}

void Agent::Parts::join_job() {
  coord::register_node(store, own_entry(), [this](const coord::NodeEntry& there) {
    refuse_if_served(there);
    return true;
  });
  store.remove(coord::rival_key(options.node));
}

// Handles another agent that is registered for this node. An agent of this very arena is dead, because this one has its
// lock. An agent on another machine may be alive and hold the node's state; then this machine has the wrong name. An
// agent that does not answer is replaced. On this machine it may be an agent whose arena was removed: it ends as soon
// as it notices that the arena has a new owner.
void Agent::Parts::refuse_if_served(const coord::NodeEntry& there) {
  if (there.arena_id == arena.arena_id()) return;
  const Deadline leaves = Deadline::in_ms(host_of(there.address) == host_of(transport->address()) ? leaves_ms : 0);
  while (answers(there)) {
    if (leaves.passed()) return refuse(there);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

bool Agent::Parts::answers(const coord::NodeEntry& there) {
  const auto reach = std::make_shared<std::promise<net::Reach>>();
  auto answer = reach->get_future();
  transport->probe(there.id, there.arena_id, there.address, [reach](net::Reach found) { reach->set_value(found); });
  return answer.wait_for(probe_timeout) == std::future_status::ready && answer.get() == net::Reach::answers;
}

void Agent::Parts::refuse(const coord::NodeEntry& there) {
  const std::string rival = coord::rival_key(options.node), who = machine_name() + " (" + transport->address() + ")";
  const auto before = store.get(rival);
  if (!before || before->value != who) store.put_if(rival, who, before ? before->revision : 0);
  throw Failure(CKPT_ERR_INVALID, "node " + options.node + " of job " + options.job +
                                      " is served by another agent, which answers at " + there.address +
                                      "; give each machine a different node name (option node), or first end that "
                                      "agent (ckptctl stop, on its machine)");
}

Agent::Agent(AgentSetup setup) : parts_(std::make_unique<Parts>(std::move(setup))) {}
Agent::~Agent() = default;
int Agent::stop_fd() const { return parts_->stop_event.get(); }
std::string Agent::replaced() const {
  const std::lock_guard lock(parts_->mutex);
  return parts_->replaced;
}

}  // namespace ckpt::agent
