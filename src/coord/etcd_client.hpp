// EtcdClient calls etcd v3 (3.4 or newer), through the JSON gateway that each etcd server has.
//
// It asks one server until that fails, then the next one. Every call ends within its time limit. An error is a Failure,
// whose sentence names the server and says what to do. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "coord/http.hpp"

namespace ckpt::coord {

struct EtcdAccess {
  std::vector<std::string> endpoints;  // "http://host:port"
  TlsFiles tls;
  std::string user;  // empty: none
  std::string password;
  std::int64_t timeout_ms = 5000;  // of one call
};

class EtcdClient {
 public:
  enum class Effect { read, write };

  explicit EtcdClient(EtcdAccess access);
  const TlsFiles& tls() const { return access_.tls; }

  // `path` as in "/v3/kv/range". After a Failure a write may or may not have happened. It is never sent twice.
  nlohmann::json call(const char* path, const nlohmann::json& request, Effect effect);

  // Passes on the lines of a streaming call until `goes_on` returns false, or calls have moved on to another member.
  void stream(HttpStream& stream, const char* path, const nlohmann::json& request, const std::function<bool()>& goes_on,
              const std::function<void(const nlohmann::json&)>& on_message);

 private:
  struct Refused;  // refused by the server, with its reason

  nlohmann::json call_member(std::size_t member, const char* path, const std::string& body, Effect effect,
                             Deadline deadline);
  std::string token(std::size_t member, Deadline deadline);
  void forget_token(const std::string& refused);
  void pass_over(std::size_t member);
  Failure failure_of(std::size_t member, const HttpTrouble& trouble) const;
  Failure failure_of(std::size_t member, const Refused& refused) const;
  std::string name_of(std::size_t member) const { return "etcd at " + access_.endpoints[member]; }

  const EtcdAccess access_;
  Http http_;
  std::atomic<std::size_t> member_{0};
  std::mutex mutex_;
  std::string token_;  // exchanged for the user's password; valid until the server forgets it
};

}  // namespace ckpt::coord
