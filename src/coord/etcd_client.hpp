// EtcdClient calls etcd v3 (3.4 or newer), through the JSON gateway that each etcd server has.
//
// An EtcdClient sends its calls to one server until that server fails, and then to the next server. Every call ends
// within its time limit. Errors are thrown as Failure, whose sentence names the server and says what to do.
// Thread-safe.
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
  std::string user;                // empty: calls need no user
  std::string password;            // the user's password
  std::int64_t timeout_ms = 5000;  // the longest that one call may take, for all the servers that it tries
};

class EtcdClient {
 public:
  // Whether a call changes something in etcd. If it is unknown whether a call arrived, only a read may be sent again.
  enum class Effect { read, write };

  explicit EtcdClient(EtcdAccess access);
  const TlsFiles& tls() const { return access_.tls; }

  // Makes one call and returns the reply. `path` is as in "/v3/kv/range". After a Failure it is unknown whether a write
  // took place.
  nlohmann::json call(const char* path, const nlohmann::json& request, Effect effect);

  // Makes a streaming call through `stream`, and passes the messages of the reply to `on_message`. Returns when
  // `goes_on` returns false, when the server ends the stream, or when calls have moved on to another server.
  void stream(HttpStream& stream, const char* path, const nlohmann::json& request, const std::function<bool()>& goes_on,
              const std::function<void(const nlohmann::json&)>& on_message);

 private:
  struct Refused;  // thrown if the server refuses a call; contains the server's reason

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
  std::string token_;  // etcd gives it for user and password; valid until the server forgets it; empty: none
};

}  // namespace ckpt::coord
