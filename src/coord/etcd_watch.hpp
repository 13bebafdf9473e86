// Reports changes under a prefix in etcd, over one streaming call at a time.
//
// Owns a thread and reports on it. When the stream ends, the next one begins where it stopped, at another member if
// need be, so the last change of a key is never missed. etcd may be unable to go on from there, because it has
// forgotten the changes in between or was restored from an older state. Then all records are reported again, and
// missing ones as removed. While no member answers, it retries less and less often.
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
  ~EtcdWatch() override;  // waits for a callback under way
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
  std::uint64_t next_revision_ = 0;  // of the first change not reported yet; 0: report everything
  std::set<std::string> there_;      // keys that were reported to exist
  bool has_received_ = false;        // whether anything came since the last pause
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ckpt::coord
