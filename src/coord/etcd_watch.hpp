// EtcdWatch reports changes of a job's records in etcd. It has a thread that reads from one streaming call at a time
// and reports.
//
// When the stream ends, the next one begins where it stopped, with another server if necessary. So the last change of a
// key is never missed. etcd may be unable to go on from there: it forgets old changes, and may be restored from an
// older state. Then the watch reports all records again, and missing ones as removed. While no server answers, it tries
// less and less often.
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
