// Opens the coordination store that the options name. For tools, it also lists and removes the records of jobs.
//
// Thread-safe. The functions throw Failure, also if the store does not answer in time.
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
  // For a directory, or an etcd without authentication, this text is enough.
  StoreLocation(std::string coordination) : at(std::move(coordination)) {}  // NOLINT(google-explicit-constructor)
  explicit StoreLocation(const Options& options);
  bool is_etcd() const { return !at.starts_with('/'); }
  std::int64_t timeout_ms() const;  // limit of a call; no function below takes longer, whatever the mount does

  std::string at;  // "/directory", or "etcd[s]://host:port[,host:port...][/prefix]"
  std::string user, password_file;
  TlsFiles tls;
};

// What an "etcd://" or "etcds://" address contains. Endpoints are "http://host:port" or "https://host:port". The prefix
// of the keys begins and ends with a slash.
struct EtcdAddress {
  std::vector<std::string> endpoints;
  std::string prefix;
};
EtcdAddress parse_etcd_address(const std::string& at);

// Opens the store of one job. Makes the directory if there is none.
std::unique_ptr<Store> open_store(const StoreLocation& location, const std::string& job);

// The jobs that have records, by name.
std::vector<std::string> jobs_with_records(const StoreLocation& location);

// A job's records at one moment. Damaged ones are left out.
struct JobRecords {
  std::vector<Entry> entries;
  std::uint64_t revision = 0;  // etcd's revision
};
JobRecords look_at_records(const StoreLocation& location, const std::string& job);
// Removes all records of a job, unless any has changed since `seen`. Returns whether it did.
bool remove_records(const StoreLocation& location, const std::string& job, const JobRecords& seen);

}  // namespace ckpt::coord
