// Opens the coordination store that the options name. For tools, it also lists and removes the records of jobs.
//
// Thread-safe. The functions throw Failure, also if the store does not answer within timeout_ms().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coord/etcd_client.hpp"
#include "coord/store.hpp"
#include "options/options.hpp"

namespace ckpt::coord {

struct StoreLocation {
  StoreLocation() = default;
  // `coordination` is the value of `at`. It is enough for a directory, and for an etcd without users and TLS files.
  StoreLocation(std::string coordination) : at(std::move(coordination)) {}  // NOLINT(google-explicit-constructor)
  explicit StoreLocation(const Options& options);
  bool is_etcd() const { return !at.starts_with('/'); }
  // The time limit of each function below. It holds even if a mount hangs.
  std::int64_t timeout_ms() const;

  std::string at;  // "/directory", or "etcd[s]://host:port[,host:port...][/prefix]"
  std::string user, password_file;
  TlsFiles tls;
};

// What an "etcd://" or "etcds://" address contains. Endpoints are "http://host:port" or "https://host:port". The keys
// of all jobs begin with `prefix`, which begins and ends with a slash.
struct EtcdAddress {
  std::vector<std::string> endpoints;
  std::string prefix;
};
EtcdAddress parse_etcd_address(const std::string& at);

// Opens the store of one job. Makes the directory if there is none.
std::unique_ptr<Store> open_store(const StoreLocation& location, const std::string& job);

// Returns the names of the jobs that have records, sorted.
std::vector<std::string> jobs_with_records(const StoreLocation& location);

// The records of a job at one moment, except damaged ones.
struct JobRecords {
  std::vector<Entry> entries;
  std::uint64_t revision = 0;  // etcd's revision at that moment; 0 for a directory
};
JobRecords look_at_records(const StoreLocation& location, const std::string& job);
// Removes all records of a job, unless any has changed since `seen`. Returns whether it removed them.
bool remove_records(const StoreLocation& location, const std::string& job, const JobRecords& seen);

}  // namespace ckpt::coord
