// Tells what changes below a prefix in etcd, over one streaming call at a time.
//
// Owns a thread, on which it tells. When the stream ends, the next one begins where it stopped, at another member if
// need be, so that no last change of a key is missed. Where etcd cannot go on from there, since it has forgotten what
// came between or was restored from an older state, everything is told anew, and what has gone as removed. While nobody
// answers it tries less and less often.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "coord/etcd_client.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

class EtcdWatch : public Watch {
 public:
  EtcdWatch(std::shared_ptr<EtcdClient> client, std::string prefix, std::function<void(const Entry&)> on_change);
  ~EtcdWatch() override;  // after the call that is under way, if there is one
  EtcdWatch(const EtcdWatch&) = delete;
  EtcdWatch& operator=(const EtcdWatch&) = delete;

 private:
  void run();
  void notify_all();
  void notify(const Entry& entry);
  void follow();
  void take(const nlohmann::json& message);

  const std::shared_ptr<EtcdClient> client_;
  const std::string prefix_;
  const std::function<void(const Entry&)> on_change_;
  HttpStream stream_;
  std::uint64_t next_revision_ = 0;  // of what was not told yet; 0: everything is to be told
  std::set<std::string> there_;      // keys, as far as was told
  bool has_received_ = false;        // anything since the last pause
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ckpt::coord
