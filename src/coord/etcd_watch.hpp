// EtcdWatch reports changes of a job's records in etcd. It has one thread, which reads from one streaming call at a
// time and calls `on_change`.
//
// When a stream ends, the next one begins with the first change that is not reported yet, at another server if
// necessary. So the watch never misses the last change of a key. If etcd no longer has all those changes, the watch
// reports all records again, and reports missing ones as removed. This happens because etcd drops old changes, and may
// be restored from an older state. While no server answers, the watch tries less and less often.
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
  ~EtcdWatch() override;  // waits until `on_change` returns, if it is being called
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
  std::uint64_t next_revision_ = 0;  // revision of the first change not reported yet; 0: report all records
  std::set<std::string> there_;      // keys that were last reported to exist
  bool has_received_ = false;        // whether etcd has sent anything since the last backoff
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ckpt::coord
