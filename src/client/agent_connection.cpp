#include "client/agent_connection.hpp"

#include <poll.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "client/agent_launcher.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t start_timeout_ms = 15'000;
constexpr std::int64_t ready_timeout_ms = 5'000;  // for an agent that another rank started at the same moment
constexpr std::int64_t claim_margin_ms = 5'000;   // beyond the time that the agent was told to keep
constexpr std::chrono::milliseconds connect_pause{10};

// The agent's own options count. It warns if they differ from these.
nlohmann::json asked_for(const Options& options) {
  nlohmann::json asked = {{"claim_timeout_ms", options.claim_timeout_ms},
                          {"capture", static_cast<int>(options.capture)},
                          {"capture_every", options.capture_every},
                          {"halts", options.on_suspicion == OnSuspicion::halt}};
  if (options.recomputes() || options.chosen_protection() != placement::Protection())
    asked["protection"] = options.protection_name();
  if (options.placement) asked["placement"] = placement::name(*options.placement);
  return asked;
}

nlohmann::json hello(const Options& options, std::uint64_t instance, std::uint64_t incarnation) {
  return {{"type", "hello"},
          {"protocol", request_version},
          {"job", options.job},
          {"rank", options.rank},
          {"world_size", options.world_size},
          {"shard", options.shard},
          {"private_shard", options.private_shard()},
          {"instance", instance},
          {"pid", ::getpid()},
          {"incarnation", incarnation},
          {"open_engines", open_engines()},
          {"options", asked_for(options)}};
}

std::optional<FrameSocket> try_connect(const std::string& path, std::string& why) {
  try {
    return FrameSocket::connect(path);
  } catch (const Failure& failure) {
    why = failure.what();
    return std::nullopt;
  }
}

std::string socket_path(const Options& options) { return options.node_dir() + "/agent.sock"; }

FrameSocket connect(const Options& options) {
  const std::string path = socket_path(options);
  std::string why;
  if (auto socket = try_connect(path, why)) return std::move(*socket);
  if (options.agent == AgentMode::attach)
    throw Failure(CKPT_ERR_NO_AGENT, why + "; start ckptd on this node, or set the option agent to auto");
  const Deadline deadline = Deadline::in_ms(start_timeout_ms);
  try {
    start_agent(options, deadline);
  } catch (const Failure& failure) {
    // Meanwhile another rank may have started one.
    if (auto socket = try_connect(path, why)) return std::move(*socket);
    throw Failure(failure.status(), "cannot start the agent of node " + options.node + ": " + failure.what());
  }
  // An agent that serves can be reached at once. If another rank's agent got the arena, it may not be ready yet.
  for (const Deadline wait_limit = Deadline::in_ms(ready_timeout_ms);;) {
    if (auto socket = try_connect(path, why)) return std::move(*socket);
    if (wait_limit.passed()) break;
    std::this_thread::sleep_for(connect_pause);
  }
  throw Failure(CKPT_ERR_NO_AGENT, "the agent of node " + options.node + " runs, but this process cannot reach it: " +
                                       why + "; see its log, " + options.log_file);
}

struct Instances {
  std::mutex mutex;
  std::set<std::uint64_t> open;
};

// Never destroyed, because engines in static storage may be closed after it would have been.
Instances& instances() {
  static auto* const all = new Instances;
  return *all;
}

}  // namespace

OpenEngine::OpenEngine(std::uint64_t instance) : instance_(instance) {
  const std::lock_guard lock(instances().mutex);
  instances().open.insert(instance_);
}

OpenEngine::~OpenEngine() {
  const std::lock_guard lock(instances().mutex);
  instances().open.erase(instance_);
}

std::vector<std::uint64_t> open_engines() {
  const std::lock_guard lock(instances().mutex);
  return {instances().open.begin(), instances().open.end()};
}

void check_answer(const nlohmann::json& answer) {
  const auto status = answer.find("status");
  if (status == answer.end() || !status->is_number_integer())
    throw Failure(CKPT_ERR_INTERNAL, "the agent's answer has no status; run ckptd and libckptengine of one version");
  const int value = status->get<int>();
  if (value == CKPT_OK) return;
  const auto message = answer.find("message");
  throw Failure(
      value >= CKPT_ERR_INVALID && value <= CKPT_ERR_INTERNAL ? static_cast<ckpt_status>(value) : CKPT_ERR_INTERNAL,
      message != answer.end() && message->is_string()
          ? message->get<std::string>()
          : "the agent refused the request and gave no reason; see its log");
}

AgentConnection AgentConnection::open(const Options& options, std::uint64_t instance, std::uint64_t incarnation) {
  AgentConnection connection(connect(options));
  const auto request = hello(options, instance, incarnation);
  const Deadline deadline = Deadline::in_ms(options.claim_timeout_ms + claim_margin_ms);
  Frame answer;
  try {
    answer = connection.ask(request, deadline);
  } catch (const Failure& failure) {
    // The agent was just ending. Finds or starts the next one.
    if (failure.status() != CKPT_ERR_NO_AGENT) throw;
    connection = AgentConnection(connect(options));
    answer = connection.ask(request, deadline);
  }
  check_answer(answer.body);
  if (answer.fds.size() != 1)
    throw Failure(CKPT_ERR_INTERNAL,
                  "the agent's answer to hello has no control page; run ckptd and libckptengine of one version");
  connection.control_ =
      std::make_shared<arena::Control>(arena::Control::attach(std::move(answer.fds.front()), options.rank));
  return connection;
}

void AgentConnection::say_goodbye(const Options& options, std::uint64_t instance) noexcept {
  try {
    FrameSocket socket = FrameSocket::connect(socket_path(options));
    socket.send({{"type", "bye"}, {"rank", options.rank}, {"instance", instance}}, {}, Deadline::in_ms(0));
  } catch (const std::exception&) {
    // The rank is free once this process ends.
  }
}

Frame AgentConnection::receive(Deadline deadline, const std::function<bool()>& meanwhile) {
  while (meanwhile && !deadline.passed() && meanwhile()) {
    if (auto answer = socket_.try_receive()) return std::move(*answer);
    if (socket_.closed()) break;
  }
  return socket_.receive(deadline);
}

Frame AgentConnection::ask(const nlohmann::json& request, Deadline deadline, const std::function<bool()>& meanwhile) {
  usable_ = false;
  try {
    socket_.send(request, {}, deadline);
    Frame answer = receive(deadline, meanwhile);
    usable_ = true;
    return answer;
  } catch (const Failure& failure) {
    const bool late = failure.status() == CKPT_ERR_TIMEOUT;
    const std::string advice = late ? ". The agent is process " + std::to_string(socket_.peer().pid) +
                                          "; ckptctl doctor shows whether it is stopped"
                                    : "";
    throw Failure(failure.status(), "the agent gave no answer to \"" + request.at("type").get<std::string>() +
                                        "\": " + failure.what() + advice);
  }
}

bool AgentConnection::hung_up() const {
  pollfd entry{socket_.fd(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace ckpt::client
