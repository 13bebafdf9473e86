// TrainerServer serves the agent's unix socket. It accepts trainers and tools of the same user, checks their requests,
// passes them to TrainerRequests and sends the answers. It watches a pidfd of each trainer to notice the trainer's
// exit.
//
// It owns one thread. It closes connections that break the protocol. No request makes the agent end, except the request
// to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "agent/log.hpp"
#include "agent/trainers/claims.hpp"
#include "agent/trainers/trainer_requests.hpp"
#include "base/frame_socket.hpp"
#include "options/options.hpp"

namespace ckpt::agent {

class TrainerServer {
 public:
  // Listens at <directory>/agent.sock. `requests` outlives this object. Throws Failure.
  TrainerServer(const Options& options, TrainerRequests& requests, Log log);
  ~TrainerServer();
  // [any thread] Makes the socket again after its file was removed. Open connections stay open.
  void listen_again();
  TrainerServer(const TrainerServer&) = delete;
  TrainerServer& operator=(const TrainerServer&) = delete;

 private:
  struct PendingClaim;
  struct Connection;
  class Outbox;

  void run();
  void poll_once();
  void accept_all();
  void make_listener();
  void serve(Connection& connection);
  void handle(Connection& connection, const nlohmann::json& request);
  void warn_of_other(core::Rank rank, const char* option, const std::optional<std::string>& asked,
                     const std::string& counts) const;
  void on_hello(Connection& connection, const nlohmann::json& request);
  void on_trainer_request(Connection& connection, const std::string& type, const nlohmann::json& request);
  void settle_claims();
  void sweep();
  void deliver();
  void close(Connection& connection);
  Respond respond_to(Connection& connection);
  void answer(Connection& connection, Reply reply);

  const Options options_;
  TrainerRequests& requests_;
  const Log log_;
  std::unique_ptr<FrameListener> listener_;  // null if it could not be made; the thread tries again
  Claims claims_;
  std::shared_ptr<Outbox> outbox_;  // shared with requests that are not answered yet
  std::list<Connection> connections_;
  std::uint64_t next_connection_ = 1;
  std::atomic<bool> stop_{false};
  std::atomic<bool> listen_again_{false};
  std::thread thread_;
};

}  // namespace ckpt::agent
