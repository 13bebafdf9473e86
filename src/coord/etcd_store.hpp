// The store in etcd v3: a key per record below a prefix of the job's own.
//
// put_if is a transaction that compares the key's mod revision; revisions are those of etcd, and so grow across all
// keys, and across the removal of a job's records, too. Reads are linearizable. etcd's leases are not used: who is
// alive is judged by agents alone, from records that stay unchanged (docs/coordination.md).
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
  // `prefix`: of the keys, with a slash at its end, as in "/ckptengine/job/".
  EtcdStore(std::shared_ptr<EtcdClient> client, std::string prefix);

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  // Tells everything that is there first, and again where it was cut off for so long that etcd forgot what came
  // between.
  std::unique_ptr<Watch> watch(std::function<void(const Entry&)> on_change) override;

  // What is there now below the prefix, and the store's revision at that moment.
  struct Content {
    std::vector<Entry> entries;
    std::uint64_t revision = 0;
  };
  Content content();
  Content notified_content();  // what a watch tells of

  // Removes what is there, all at once, unless any has changed after this revision of the store; whether it did.
  bool remove_all(std::uint64_t unchanged_since);

 private:
  Content content_of(nlohmann::json range);
  bool transact(const nlohmann::json& compare, const nlohmann::json& operation, std::uint64_t* revision = nullptr);
  std::string full_key(const std::string& key) const;

  const std::shared_ptr<EtcdClient> client_;
  const std::string prefix_;
};

}  // namespace ckpt::coord
