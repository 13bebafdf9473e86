// EtcdStore is a coordination store in etcd v3: one key per record, under a prefix for the job.
//
// put_if() is a transaction that compares the key's mod revision. An entry's revision is etcd's own: etcd counts all
// changes of all keys with one number, removals too. Reads are linearizable. EtcdStore does not use etcd's leases.
// Agents themselves judge which agents are alive: by how long a record has not changed (docs/protocol.md).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coord/etcd_client.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

class EtcdStore : public Store {
 public:
  // Every key of the job begins with `prefix`, which ends with a slash, as in "/ckptengine/job/".
  EtcdStore(std::shared_ptr<EtcdClient> client, std::string prefix);

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  // The watch first reports all existing records. It reports all of them again if it was interrupted and etcd no longer
  // has the changes that it missed.
  std::unique_ptr<Watch> watch(std::function<void(const Entry&)> on_change) override;

  // The records under the prefix, and the store's revision at that moment.
  struct Content {
    std::vector<Entry> entries;
    std::uint64_t revision = 0;
  };
  Content content();
  Content notified_content();  // only the records that a watch reports

  // Removes all records at once, unless a record has changed since etcd's revision `unchanged_since`. Returns whether
  // it removed them.
  bool remove_all(std::uint64_t unchanged_since);

 private:
  Content content_of(nlohmann::json range);
  bool transact(const nlohmann::json& compare, const nlohmann::json& operation, std::uint64_t* revision = nullptr);
  std::string full_key(const std::string& key) const;

  const std::shared_ptr<EtcdClient> client_;
  const std::string prefix_;
};

}  // namespace ckpt::coord
